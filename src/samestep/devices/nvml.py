"""Asking the NVIDIA driver through its management library (`nvidia-ml-py`).

Nothing of the library stays open: the ranks are forked from this process. Whatever the driver does not tell about one
GPU is None, or makes that GPU one with a `problem`; it does not hide the others.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samestep.devices.gpus import Gpu, GpuProcess, MigSlice, plain_pci
from samestep.devices.missing import missing_driver

_TEMPERATURE_OF_GPU = 0
_LINKS_AT_MOST = 18


class DriverSilent(Exception):
    """The driver cannot be asked; the text says why, in words fit for the user."""


@dataclass(frozen=True)
class Link:
    """How two GPUs are joined: `path` is one of `PATHS`, `nvlinks` the number of NVLinks.

    `peer` says whether they can read each other's memory; None if the driver does not tell.
    """

    path: str | None
    nvlinks: int
    peer: bool | None


#: What two GPUs have in common on the way between them, the nearest first, by the driver's number for it.
PATHS = {0: "same board", 10: "PCIe switch", 20: "PCIe switches", 30: "host bridge", 40: "NUMA node", 50: "system"}


def driver_gpus(usage: bool = False) -> tuple[tuple[Gpu, ...], str | None]:
    """All GPUs of the NVIDIA driver in the order of `nvidia-smi`; without any, the reason.

    With `usage` the driver is also asked what is changing: utilisation, temperature and processes.
    """
    try:
        with _library() as nvml:
            gpus = tuple(
                gpu for index in range(nvml.nvmlDeviceGetCount()) if (gpu := _describe(nvml, index, usage)) is not None
            )
    except DriverSilent as silent:
        return (), str(silent)
    return gpus, None if gpus else "the NVIDIA driver lists none"


def driver_links(gpus: tuple[Gpu, ...]) -> dict[tuple[int, int], Link]:
    """The link between each pair of GPUs, by their numbers in `nvidia-smi`, the lower one first."""
    links: dict[tuple[int, int], Link] = {}
    try:
        with _library() as nvml:
            handles = {gpu.index: nvml.nvmlDeviceGetHandleByIndex(gpu.index) for gpu in gpus if gpu.problem is None}
            by_pci = {gpu.pci: gpu.index for gpu in gpus}
            direct = {index: _nvlinks(nvml, handle) for index, handle in handles.items()}
            for first, one in handles.items():
                for second, other in handles.items():
                    if first < second:
                        links[first, second] = _link(nvml, one, other, _joined(direct, by_pci, first, second))
    except DriverSilent:
        return {}
    return links


@contextmanager
def _library() -> Iterator[Any]:
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        raise DriverSilent("the package nvidia-ml-py is not installed") from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise DriverSilent(_reason(error)) from None
    try:
        yield nvml
    except nvml.NVMLError as error:
        raise DriverSilent(_reason(error)) from None
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()  # nothing of the driver may be open when the ranks are forked


def _reason(error: BaseException) -> str:
    name = type(error).__name__
    if name in ("NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded"):
        return missing_driver()
    if name == "NVMLError_LibRmVersionMismatch":
        return (
            "the NVIDIA driver was updated while it was running: its library and its kernel module are of different "
            "versions; reboot, or reload the kernel module"
        )
    if name == "NVMLError_NoPermission":
        return "this user may not use the NVIDIA driver (permission denied; see the rights of /dev/nvidia*)"
    return f"the NVIDIA driver says: {error}"


def _ask(nvml: Any, question: str, *about: Any) -> Any:
    """The driver's answer; None where it does not know."""
    try:
        return getattr(nvml, question)(*about)
    except (nvml.NVMLError, AttributeError):  # AttributeError: an older nvidia-ml-py does not know the question
        return None


def _describe(nvml: Any, index: int, usage: bool) -> Gpu | None:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        if type(error).__name__ == "NVMLError_NoPermission":
            return None  # kept from this process (SLURM, a container): for CUDA it does not exist, either
        return Gpu(index, "unknown", "", "", 0, 0, problem=f"the driver says: {error}")
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        gpu = Gpu(
            index=index,
            name=_text(nvml.nvmlDeviceGetName(handle)),
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            pci=plain_pci(_text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
            memory_total=int(memory.total),
            memory_used=int(memory.used),
            capability=_ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle),
            cpus=_cpus(nvml, handle),
        )
    except nvml.NVMLError as error:
        name = _text(_ask(nvml, "nvmlDeviceGetName", handle) or "unknown")
        return Gpu(index, name, "", "", 0, 0, problem=f"the driver says: {error}")
    return _with_changing(nvml, handle, gpu) if usage else _with_slices(nvml, handle, gpu)


def _with_changing(nvml: Any, handle: Any, gpu: Gpu) -> Gpu:
    rates = _ask(nvml, "nvmlDeviceGetUtilizationRates", handle)
    processes = _ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
    changed = replace(
        gpu,
        utilisation=None if rates is None else int(rates.gpu),
        temperature=_ask(nvml, "nvmlDeviceGetTemperature", handle, _TEMPERATURE_OF_GPU),
        processes=tuple(_process(each) for each in processes) if processes is not None else None,
    )
    return _with_slices(nvml, handle, changed)


def _process(entry: Any) -> GpuProcess:
    user = command = None
    with contextlib.suppress(Exception):  # it has ended, or belongs to another container
        psutil: Any = importlib.import_module("psutil")
        process = psutil.Process(int(entry.pid))
        command = str(process.name())
        user = str(process.username())
    memory = None if entry.usedGpuMemory is None else int(entry.usedGpuMemory)
    return GpuProcess(int(entry.pid), memory, user, command)


def _with_slices(nvml: Any, handle: Any, gpu: Gpu) -> Gpu:
    mode = _ask(nvml, "nvmlDeviceGetMigMode", handle)
    if not mode or not mode[0]:
        return gpu
    slices = []
    minor = _ask(nvml, "nvmlDeviceGetMinorNumber", handle)
    for index in range(_ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        found = _ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        uuid = None if found is None else _ask(nvml, "nvmlDeviceGetUUID", found)
        if uuid is not None:
            slices.append(_slice(nvml, found, index, _text(uuid), gpu, minor))
    return replace(gpu, mig=True, slices=tuple(slices))


def _slice(nvml: Any, handle: Any, index: int, uuid: str, gpu: Gpu, minor: int | None) -> MigSlice:
    memory = _ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    instance = _ask(nvml, "nvmlDeviceGetGpuInstanceId", handle)
    compute = _ask(nvml, "nvmlDeviceGetComputeInstanceId", handle)
    instances = None if instance is None or compute is None else (int(instance), int(compute))
    return MigSlice(
        index=index,
        uuid=uuid,
        name=_text(_ask(nvml, "nvmlDeviceGetName", handle) or f"a slice of {gpu.name}"),
        memory_total=int(memory.total) if memory is not None else 0,
        memory_used=int(memory.used) if memory is not None else 0,
        instances=instances,
        accessible=slice_accessible(minor, instances),
    )


def slice_accessible(minor: int | None, instances: tuple[int, int] | None, root: Path = Path("/")) -> bool:
    """Whether this user may open a MIG slice: its device file is readable. True where that cannot be found out.

    The driver lists the slices of all users; CUDA then fails to open the others' with "no device".
    """
    if minor is None or instances is None:
        return True
    wanted = f"gpu{minor}/gi{instances[0]}/ci{instances[1]}/access"
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines():
            name, _, number = line.rpartition(" ")
            if name == wanted:
                device = root / f"dev/nvidia-caps/nvidia-cap{int(number)}"
                return not device.exists() or os.access(device, os.R_OK)
    return True


def _cpus(nvml: Any, handle: Any) -> frozenset[int] | None:
    words = max(1, ((os.cpu_count() or 1) + 63) // 64)
    mask = _ask(nvml, "nvmlDeviceGetCpuAffinity", handle, words)
    if mask is None:
        return None
    return frozenset(64 * word + bit for word, bits in enumerate(mask) for bit in range(64) if bits >> bit & 1)


def _nvlinks(nvml: Any, handle: Any) -> list[str | None]:
    """Where each active NVLink of a GPU leads: a PCI address, or None (a switch, or unknown)."""
    ends: list[str | None] = []
    for number in range(_LINKS_AT_MOST):
        if _ask(nvml, "nvmlDeviceGetNvLinkState", handle, number) == 1:
            remote = _ask(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, number)
            ends.append(plain_pci(_text(remote.busId)) if remote is not None and remote.busId else None)
    return ends


def _joined(direct: dict[int, list[str | None]], by_pci: dict[str, int], first: int, second: int) -> int:
    """The NVLinks between two GPUs: direct ones, else those that both have to a switch."""
    straight = sum(end is not None and by_pci.get(end) == second for end in direct[first])
    if straight:
        return straight
    switched = [sum(end is None or end not in by_pci for end in direct[index]) for index in (first, second)]
    return min(switched)


def _link(nvml: Any, one: Any, other: Any, nvlinks: int) -> Link:
    level = _ask(nvml, "nvmlDeviceGetTopologyCommonAncestor", one, other)
    read, write = (_ask(nvml, "nvmlDeviceGetP2PStatus", one, other, what) for what in (0, 1))
    peer = None if read is None or write is None else read == 0 and write == 0
    return Link(PATHS.get(level) if level is not None else None, nvlinks, peer)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)  # bytes before 11.515
