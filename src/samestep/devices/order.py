"""In which order CUDA counts the GPUs: as `nvidia-smi` does, or by its own guess of their speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from samestep.devices.gpus import Gpu

VARIABLE = "CUDA_DEVICE_ORDER"
BY_BUS, BY_SPEED = "PCI_BUS_ID", "FASTEST_FIRST"

# In a process of its own: CUDA must not be initialised in the one that forks the ranks.
_ASK_CUDA = """\
import ctypes, json, sys
cuda = ctypes.CDLL("libcuda.so.1")
def check(code):
    if code:
        sys.exit(f"CUDA says {code}")
check(cuda.cuInit(0))
count = ctypes.c_int()
check(cuda.cuDeviceGetCount(ctypes.byref(count)))
found = []
for number in range(count.value):
    device, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    check(cuda.cuDeviceGet(ctypes.byref(device), number))
    check(cuda.cuDeviceGetUuid(uuid, device))
    found.append(bytes(uuid).hex())
print(json.dumps(found))
"""
_PATIENCE_S = 60


def wanted_order() -> str:
    """The order that the user has asked CUDA for; `PCI_BUS_ID` if none.

    CUDA itself takes any other word, and none, for FASTEST_FIRST; Samestep numbers as `nvidia-smi` does unless the
    user says otherwise.
    """
    value = os.environ.get(VARIABLE)
    return BY_BUS if value in (None, "", BY_BUS) else BY_SPEED


def cuda_order(gpus: Sequence[Gpu]) -> tuple[tuple[Gpu, ...], bool]:
    """The GPUs as CUDA counts them, and whether that is certain.

    FASTEST_FIRST is a rule that only CUDA knows, so CUDA is asked. If it cannot be, the order is that of `nvidia-smi`.
    """
    usable = tuple(gpu for gpu in gpus if gpu.problem is None)
    if wanted_order() == BY_BUS or len(usable) < 2:
        return tuple(gpus), True
    by_uuid = {gpu.uuid.removeprefix("GPU-").replace("-", "").lower(): gpu for gpu in usable}
    told = _ask_cuda()
    if sorted(told) != sorted(by_uuid):
        return tuple(gpus), False
    return tuple(by_uuid[uuid] for uuid in told), True


def _ask_cuda() -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    try:
        asked = subprocess.run(
            [sys.executable, "-I", "-c", _ASK_CUDA],
            env={**environment, VARIABLE: BY_SPEED},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_S,
        )
        return list(json.loads(asked.stdout)) if asked.returncode == 0 else []
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
