/* A stand-in for NVIDIA's management library: answers what the JSON file named by FAKE_NVML says.
 *
 *   {"init": 0, "gpus": [{"name": …, "uuid": …, "pci": …, "total": …, "used": …, "busy": …, "temperature": …,
 *     "capability": [9, 0], "processes": [{"pid": …, "memory": …}], "cpus": [mask, …], "minor": …,
 *     "nvlinks": ["pci address" or "", …], "slices": [{"uuid", "name", "total", "used", "gi", "ci"}],
 *     "errors": {"nvmlDeviceGetName": 15, "handle": 4}}],
 *    "level": 50, "peer": 0, "pairs": {"0-1": {"level": 10, "peer": 0}}}
 *
 * What is missing is "not supported" (3). The file is read anew at every nvmlInit.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long u64;
#define NOT_SUPPORTED 3
#define INVALID 2
#define UNINITIALIZED 1
#define TOO_SMALL 7

static char *text;
static int users;

/* ---------------------------------------------------------------- just enough JSON */
static const char *blank(const char *p) {
    while (*p && strchr(" \t\r\n,:", *p)) p++;
    return p;
}

static const char *skip(const char *p) {
    p = blank(p);
    if (*p == '"') {
        for (p++; *p && *p != '"'; p++)
            if (*p == '\\') p++;
        return *p ? p + 1 : p;
    }
    if (*p == '{' || *p == '[') {
        char end = *p == '{' ? '}' : ']';
        p = blank(p + 1);
        while (*p && *p != end) p = blank(skip(p));
        return *p ? p + 1 : p;
    }
    while (*p && !strchr(",]} \t\r\n", *p)) p++;
    return p;
}

/* The value at a path such as gpus/0/name, or NULL. */
static const char *find(const char *path) {
    const char *p = text ? blank(text) : NULL;
    while (p && *path) {
        size_t length = strcspn(path, "/");
        if (*p == '{') {
            const char *key = blank(p + 1);
            p = NULL;
            while (*key == '"') {
                const char *after = skip(key);
                if ((size_t)(after - key) == length + 2 && !strncmp(key + 1, path, length)) {
                    p = blank(after);
                    break;
                }
                key = blank(skip(after));
            }
        } else if (*p == '[') {
            long wanted = strtol(path, NULL, 10);
            p = blank(p + 1);
            while (*p && *p != ']' && wanted-- > 0) p = blank(skip(p));
            if (!*p || *p == ']') p = NULL;
        } else {
            p = NULL;
        }
        path += length;
        if (*path == '/') path++;
    }
    return p;
}

static const char *at(const char *form, int a, int b, const char *name) {
    char path[256];
    snprintf(path, sizeof path, form, a, b, name);
    return find(path);
}

static int number(const char *value, u64 *into) {
    if (!value || *value == 'n') return NOT_SUPPORTED;
    *into = strtoull(value, NULL, 10);
    return 0;
}

static int string(const char *value, char *into, unsigned size) {
    unsigned n = 0;
    if (!value || *value != '"') return NOT_SUPPORTED;
    for (value++; *value && *value != '"' && n + 1 < size; value++) into[n++] = *value;
    into[n] = 0;
    return 0;
}

static int length(const char *list) {
    int n = 0;
    if (!list || *list != '[') return -1;
    for (list = blank(list + 1); *list && *list != ']'; list = blank(skip(list))) n++;
    return n;
}

/* ---------------------------------------------------------------- handles: a GPU's number, and a slice's or -1 */
static void *handle(int gpu, int slice) { return (void *)(size_t)(0x100000 + gpu * 100 + slice + 1); }
static int gpu_of(void *h) { return (int)((size_t)h - 0x100000) / 100; }
static int slice_of(void *h) { return (int)((size_t)h - 0x100000) % 100 - 1; }

/* The error that a GPU is scripted to give for a call, 0 if none. */
static int error_of(int gpu, const char *call) {
    u64 code = 0;
    if (!users) return UNINITIALIZED;
    if (number(at("gpus/%d/errors%.0d/%s", gpu, 0, call), &code)) return 0;
    return (int)code;
}

static const char *fact(void *h, const char *name) {
    int gpu = gpu_of(h), slice = slice_of(h);
    return slice < 0 ? at("gpus/%d%.0d/%s", gpu, 0, name) : at("gpus/%d/slices/%d/%s", gpu, slice, name);
}

#define CHECKED(h)                                          \
    do {                                                    \
        int code = error_of(gpu_of(h), __func__);           \
        if (code) return code;                              \
    } while (0)

/* ---------------------------------------------------------------- the library */
int nvmlInitWithFlags(unsigned flags) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "rb") : NULL;
    u64 code = 0;
    (void)flags;
    if (!file) return 9; /* the driver is not loaded */
    free(text);
    text = calloc(1, 1 << 20);
    if (!text || !fread(text, 1, (1 << 20) - 1, file)) code = 999;
    fclose(file);
    if (code) return (int)code;
    number(find("init"), &code);
    if (!code) users++;
    return (int)code;
}

int nvmlShutdown(void) {
    if (!users) return UNINITIALIZED;
    users--;
    return 0;
}

const char *nvmlErrorString(int code) {
    switch (code) {
    case 0: return "Success";
    case 1: return "Uninitialized";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

int fake_nvml_users(void) { return users; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!users) return UNINITIALIZED;
    u64 code = 0;
    number(find("count_error"), &code);
    if (code) return (int)code;
    int n = length(find("gpus"));
    *count = n < 0 ? 0 : (unsigned)n;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **h) {
    int code = error_of((int)index, "handle");
    if (code) return code;
    if ((int)index >= length(find("gpus"))) return INVALID;
    *h = handle((int)index, -1);
    return 0;
}

int nvmlDeviceGetName(void *h, char *into, unsigned size) {
    CHECKED(h);
    return string(fact(h, "name"), into, size);
}

int nvmlDeviceGetUUID(void *h, char *into, unsigned size) {
    CHECKED(h);
    return string(fact(h, "uuid"), into, size);
}

typedef struct {
    char old[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} Pci;

int nvmlDeviceGetPciInfo_v3(void *h, Pci *pci) {
    CHECKED(h);
    memset(pci, 0, sizeof *pci);
    return string(fact(h, "pci"), pci->bus_id, sizeof pci->bus_id);
}

int nvmlDeviceGetMemoryInfo(void *h, u64 *total_free_used) {
    u64 total, used;
    CHECKED(h);
    if (number(fact(h, "total"), &total) || number(fact(h, "used"), &used)) return NOT_SUPPORTED;
    total_free_used[0] = total, total_free_used[1] = total - used, total_free_used[2] = used;
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *h, unsigned *gpu_memory) {
    u64 busy;
    CHECKED(h);
    if (number(fact(h, "busy"), &busy)) return NOT_SUPPORTED;
    gpu_memory[0] = (unsigned)busy, gpu_memory[1] = 0;
    return 0;
}

int nvmlDeviceGetTemperature(void *h, unsigned sensor, unsigned *into) {
    u64 degrees;
    (void)sensor;
    CHECKED(h);
    if (number(fact(h, "temperature"), &degrees)) return NOT_SUPPORTED;
    *into = (unsigned)degrees;
    return 0;
}

int nvmlDeviceGetCudaComputeCapability(void *h, int *major, int *minor) {
    u64 a, b;
    CHECKED(h);
    if (number(fact(h, "capability/0"), &a) || number(fact(h, "capability/1"), &b)) return NOT_SUPPORTED;
    *major = (int)a, *minor = (int)b;
    return 0;
}

typedef struct {
    unsigned pid;
    u64 memory;
    unsigned gi, ci;
} Process;

int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *count, Process *into) {
    int n = length(fact(h, "processes"));
    CHECKED(h);
    if (n < 0) return NOT_SUPPORTED;
    if ((int)*count < n) {
        *count = (unsigned)n;
        return TOO_SMALL;
    }
    *count = (unsigned)n;
    for (int i = 0; i < n; i++) {
        char name[64];
        u64 pid = 0, memory = (u64)-1;
        snprintf(name, sizeof name, "processes/%d/pid", i);
        number(fact(h, name), &pid);
        snprintf(name, sizeof name, "processes/%d/memory", i);
        number(fact(h, name), &memory);
        into[i].pid = (unsigned)pid, into[i].memory = memory, into[i].gi = into[i].ci = (unsigned)-1;
    }
    return 0;
}

int nvmlDeviceGetCpuAffinity(void *h, unsigned words, unsigned long *mask) {
    CHECKED(h);
    if (length(fact(h, "cpus")) < 0) return NOT_SUPPORTED;
    for (unsigned i = 0; i < words; i++) {
        char name[32];
        u64 bits = 0;
        snprintf(name, sizeof name, "cpus/%u", i);
        number(fact(h, name), &bits);
        mask[i] = (unsigned long)bits;
    }
    return 0;
}

int nvmlDeviceGetMinorNumber(void *h, unsigned *into) {
    u64 minor;
    CHECKED(h);
    if (number(fact(h, "minor"), &minor)) return NOT_SUPPORTED;
    *into = (unsigned)minor;
    return 0;
}

/* ---------------------------------------------------------------- MIG */
int nvmlDeviceGetMigMode(void *h, unsigned *now, unsigned *later) {
    CHECKED(h);
    *now = *later = length(fact(h, "slices")) >= 0;
    return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(void *h, unsigned *count) {
    CHECKED(h);
    *count = 7;
    return 0;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned index, void **slice) {
    CHECKED(h);
    if ((int)index >= length(fact(h, "slices"))) return 6; /* not found */
    *slice = handle(gpu_of(h), (int)index);
    return 0;
}

static int instance(void *h, const char *name, unsigned *into) {
    u64 value;
    if (number(fact(h, name), &value)) return NOT_SUPPORTED;
    *into = (unsigned)value;
    return 0;
}

int nvmlDeviceGetGpuInstanceId(void *h, unsigned *into) { return instance(h, "gi", into); }
int nvmlDeviceGetComputeInstanceId(void *h, unsigned *into) { return instance(h, "ci", into); }

/* ---------------------------------------------------------------- how GPUs are joined */
static int pair(void *one, void *other, const char *name, unsigned *into) {
    char path[64];
    u64 value;
    int a = gpu_of(one), b = gpu_of(other);
    snprintf(path, sizeof path, "pairs/%d-%d/%s", a < b ? a : b, a < b ? b : a, name);
    if (number(find(path), &value) && number(find(name), &value)) return NOT_SUPPORTED;
    *into = (unsigned)value;
    return 0;
}

int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, unsigned *level) {
    CHECKED(one);
    return pair(one, other, "level", level);
}

int nvmlDeviceGetP2PStatus(void *one, void *other, unsigned what, unsigned *status) {
    (void)what;
    CHECKED(one);
    return pair(one, other, "peer", status);
}

int nvmlDeviceGetNvLinkState(void *h, unsigned link, unsigned *active) {
    CHECKED(h);
    if (length(fact(h, "nvlinks")) < 0) return NOT_SUPPORTED;
    *active = (int)link < length(fact(h, "nvlinks"));
    return 0;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *h, unsigned link, Pci *pci) {
    char name[32];
    CHECKED(h);
    memset(pci, 0, sizeof *pci);
    snprintf(name, sizeof name, "nvlinks/%u", link);
    return string(fact(h, name), pci->bus_id, sizeof pci->bus_id);
}
