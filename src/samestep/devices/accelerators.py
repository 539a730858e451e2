"""Devices that are neither CPUs nor called `cuda` by PyTorch: Intel's XPUs, Apple's GPU, XLA devices."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from samestep.devices.grammar import Accelerators
from samestep.devices.missing import pci_gpus, torch_build
from samestep.devices.selection import DeviceSelection
from samestep.errors import SamestepError

MASK = "ZE_AFFINITY_MASK"
_INTEL = "0x8086"
_SYSTEM_BUS_0 = re.compile(r"[0-9a-f]{4}:00:")  # the display that is part of the processor


def select(request: Accelerators, origin: str) -> DeviceSelection:
    """One rank per device of that kind. Raises `SamestepError` where the installed PyTorch has none."""
    if request.kind == "xpu":
        return _xpus(request.count, origin)
    if request.kind == "mps":
        if sys.platform != "darwin" or platform.machine() != "arm64":
            raise SamestepError(f"{origin}: mps is the GPU of a Mac with Apple silicon; this is {platform.system()}")
        return DeviceSelection("mps", (0,))
    if importlib.util.find_spec("torch_xla") is None:
        raise SamestepError(f"{origin}: XLA devices need the package torch_xla, which is not installed")
    return DeviceSelection("xla", tuple(range(request.count or 1)))


def _xpus(count: int | None, origin: str) -> DeviceSelection:
    build = torch_build()
    if not build.xpu:
        raise SamestepError(
            f"{origin}: the installed PyTorch has no XPU support (it is {build.describe()}); install its XPU build"
        )
    visible, said = read_mask(os.environ, _xpu_count())
    if not visible:
        found = f" behind {MASK}={os.environ[MASK]!r}" if MASK in os.environ else ""
        raise SamestepError(f"{origin}: no XPU was found{found}; cpu:2 runs on two CPU processes instead")
    if count is not None and count > len(visible):
        raise SamestepError(f"{origin}: {count} XPUs are asked for, and there are {len(visible)}")
    chosen = visible[: count or len(visible)]
    return DeviceSelection(
        "xpu",
        tuple(range(len(chosen))),
        chosen,
        variable=MASK,
        shown=os.environ.get(MASK),
        gloo=True,
        notes=said,
    )


def read_mask(environment: Mapping[str, str], count: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The entries of ZE_AFFINITY_MASK that are there among `count` devices, and what is ignored without a word.

    An entry is a device (`1`) or a tile of one (`1.0`); entries that are not there are left out, not the rest.
    """
    value = environment.get(MASK)
    if not value:
        return tuple(map(str, range(count))), ()
    entries: list[str] = []
    said: list[str] = []
    for part in (each.strip() for each in value.split(",")):
        if re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4})?", part) is None or int(part.split(".")[0]) >= count:
            said.append(f"in {MASK}={value!r} the entry {part!r} is not there and is ignored")
        elif part in entries:
            said.append(f"{MASK}={value!r} names {part} twice; it counts once")
        else:
            entries.append(part)
    return tuple(entries), tuple(said)


def _xpu_count(root: Path = Path("/")) -> int:
    """Intel's GPUs on boards of their own; the one that is part of the processor only if it is all there is."""
    found = pci_gpus(_INTEL, root)
    return len([address for address in found if _SYSTEM_BUS_0.match(address) is None]) or len(found)
