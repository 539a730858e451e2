/* A stand-in for libcuda.so.1, as far as its order of GPUs is asked for: FAKE_CUDA holds their UUIDs, 32 hexadecimal
 * digits each, separated by commas, fastest first. */
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

static const char *list(void) {
    const char *order = getenv("CUDA_DEVICE_ORDER"), *found = getenv("FAKE_CUDA");
    return order && !strcmp(order, "FASTEST_FIRST") && !getenv("CUDA_VISIBLE_DEVICES") ? found : NULL;
}

int cuInit(unsigned flags) { return flags || !list() ? 100 : 0; }

int cuDeviceGetCount(int *count) {
    *count = (int)(strlen(list()) + 1) / 33;
    return 0;
}

int cuDeviceGet(int *device, int number) {
    *device = number;
    return 0;
}

int cuDeviceGetUuid(unsigned char *uuid, int device) {
    for (int i = 0; i < 16; i++) {
        unsigned byte;
        if (sscanf(list() + 33 * device + 2 * i, "%2x", &byte) != 1) return 1;
        uuid[i] = (unsigned char)byte;
    }
    return 0;
}
