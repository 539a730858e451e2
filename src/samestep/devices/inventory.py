"""What is there: the GPUs of this machine, as far as CUDA_VISIBLE_DEVICES lets them be seen."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from dataclasses import dataclass
from typing import Any

from samestep.errors import SamestepError


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver describes it; `index` is its number in `nvidia-smi`."""

    index: int
    name: str
    uuid: str
    pci: str
    memory_total: int
    memory_used: int


@dataclass(frozen=True)
class VisibleGpu:
    """A GPU that a run may use: its `number` for the user, and its `token` for CUDA_VISIBLE_DEVICES.

    `gpu` is None for a device that the driver's list does not name (a MIG slice given by its UUID).
    """

    number: int
    token: str
    gpu: Gpu | None

    @property
    def name(self) -> str:
        """The product name, or what CUDA_VISIBLE_DEVICES called it."""
        return self.gpu.name if self.gpu is not None else self.token


@dataclass(frozen=True)
class Inventory:
    """The GPUs a run may use; if there are none, `reason` says why, in words fit for the user."""

    gpus: tuple[VisibleGpu, ...]
    reason: str | None

    def summary(self) -> str:
        """What there is, for an error message."""
        if not self.gpus:
            return f"no GPU was found ({self.reason})"
        return "there are " + ", ".join(f"{gpu.number} ({gpu.name})" for gpu in self.gpus)


def take_inventory() -> Inventory:
    """The GPUs that a run of this process may use, restricted and renumbered by CUDA_VISIBLE_DEVICES as CUDA does."""
    gpus, reason = driver_gpus()
    if gpus and torch_is_cpu_build():
        return Inventory((), "the installed PyTorch is the CPU build")
    restriction = os.environ.get("CUDA_VISIBLE_DEVICES")
    if restriction is None or not gpus:
        return Inventory(tuple(VisibleGpu(gpu.index, str(gpu.index), gpu) for gpu in gpus), reason)
    visible = _restricted(restriction, gpus)
    return Inventory(visible, None if visible else f"CUDA_VISIBLE_DEVICES={restriction!r} hides every GPU")


def driver_gpus() -> tuple[tuple[Gpu, ...], str | None]:
    """All GPUs of the NVIDIA driver in the order of `nvidia-smi`; without any, the reason."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return (), "the package nvidia-ml-py is not installed"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return (), _reason(error)
    try:
        gpus = tuple(_describe(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
    except nvml.NVMLError as error:
        return (), _reason(error)
    finally:
        nvml.nvmlShutdown()  # nothing of the driver may be open when the ranks are forked
    return gpus, None if gpus else "the NVIDIA driver lists none"


def torch_is_cpu_build() -> bool:
    """Whether the installed PyTorch says in its version that it has no CUDA (asked without importing it)."""
    try:
        return importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return False


def usable_cores() -> int:
    """How many cores this process may run on (its affinity, not the machine's count)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _describe(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        pci=_text(nvml.nvmlDeviceGetPciInfo(handle).busId),
        memory_total=int(memory.total),
        memory_used=int(memory.used),
    )


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)  # bytes before 11.515


def _reason(error: BaseException) -> str:
    if type(error).__name__ in ("NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded"):
        return "no NVIDIA driver"
    return f"the NVIDIA driver says: {error}"


def _restricted(restriction: str, gpus: tuple[Gpu, ...]) -> tuple[VisibleGpu, ...]:
    visible: list[VisibleGpu] = []
    for token in (part.strip() for part in restriction.split(",")):
        found = _find(token, gpus)
        if found is None and not token.startswith("MIG-"):
            break  # CUDA ignores the first entry it does not know and all that follow
        if any(token == other.token or (found is not None and found == other.gpu) for other in visible):
            raise SamestepError(
                f"CUDA_VISIBLE_DEVICES={restriction!r} names {token} twice; CUDA then shows no GPU at all"
            )
        visible.append(VisibleGpu(len(visible), token, found))
    return tuple(visible)


def _find(token: str, gpus: tuple[Gpu, ...]) -> Gpu | None:
    if token.isascii() and token.isdigit():
        return next((gpu for gpu in gpus if gpu.index == int(token)), None)
    if token.startswith("GPU-"):
        matches = [gpu for gpu in gpus if gpu.uuid.startswith(token)]
        return matches[0] if len(matches) == 1 else None
    return None
