"""What is there: the GPUs of this machine, as far as CUDA_VISIBLE_DEVICES lets them be seen."""

from __future__ import annotations

import os
from dataclasses import dataclass

from samestep.devices import amd, nvml, order
from samestep.devices.gpus import Gpu, MigSlice
from samestep.devices.missing import torch_build
from samestep.devices.visibility import VARIABLE, Entry, Visibility, read_visible


@dataclass(frozen=True)
class VisibleGpu:
    """A device that a run may use: its `number` for the user, and its `token` for CUDA_VISIBLE_DEVICES.

    `slice` is set if it is a MIG slice of `gpu`. `gpu` is None for a device that the driver's list does not name.
    `written` is how the user would write it in CUDA_VISIBLE_DEVICES.
    """

    number: int
    token: str
    gpu: Gpu | None
    slice: MigSlice | None = None
    written: str = ""

    @property
    def name(self) -> str:
        """The product name, or what CUDA_VISIBLE_DEVICES called it."""
        if self.slice is not None:
            return self.slice.name
        return self.gpu.name if self.gpu is not None else self.token

    @property
    def identity(self) -> str:
        """What tells the device from all others on this machine."""
        if self.slice is not None:
            return self.slice.uuid
        return (self.gpu.uuid or f"GPU {self.gpu.index}") if self.gpu is not None else self.token


@dataclass(frozen=True)
class Inventory:
    """The GPUs a run may use; if there are none, `reason` says why, in words fit for the user.

    `everything` are all GPUs of the machine in the order of `nvidia-smi`, `hidden` says what hides some of them, and
    `said` what CUDA does without a word. `order` is CUDA_DEVICE_ORDER for the ranks.
    """

    gpus: tuple[VisibleGpu, ...]
    reason: str | None
    everything: tuple[Gpu, ...] = ()
    hidden: str | None = None
    said: tuple[str, ...] = ()
    order: str = order.BY_BUS
    variable: str = VARIABLE

    def summary(self) -> str:
        """What there is, for an error message."""
        if not self.gpus:
            return f"no GPU was found ({self.reason})"
        return "there are " + ", ".join(f"{gpu.number} ({gpu.name})" for gpu in self.gpus)


def take_inventory(usage: bool = False, restriction: str | None = None) -> Inventory:
    """The GPUs that a run of this process may use, restricted and renumbered by CUDA_VISIBLE_DEVICES as CUDA does.

    `usage` also asks for what is changing (utilisation, temperature, processes). `restriction` takes the place of
    CUDA_VISIBLE_DEVICES: a script has set it so.
    """
    if torch_build().hip:
        return _amd_inventory(restriction)
    gpus, reason = nvml.driver_gpus(usage)
    if gpus and torch_is_cpu_build():
        return Inventory((), f"the installed PyTorch is the CPU build; {_install_hint()}", gpus)
    if not gpus:
        return Inventory((), reason)
    value = restriction if restriction is not None else os.environ.get(VARIABLE)
    counted, certain = order.cuda_order(gpus)
    said = _order_notes(counted, certain, value)
    wanted = order.wanted_order()
    if value is None:
        return Inventory(_unrestricted(counted, certain), None, gpus, None, said, wanted)
    seen = read_visible(value, counted)
    said = (*said, *seen.said)
    hidden = f"{VARIABLE}={value!r}"
    if not seen.entries:
        return Inventory((), f"{hidden} hides every GPU" + _because(seen), gpus, hidden, said, wanted)
    visible = tuple(_visible(number, entry, certain) for number, entry in enumerate(seen.entries))
    return Inventory(visible, None, gpus, hidden, said, wanted)


def torch_is_cpu_build() -> bool:
    """Whether the installed PyTorch has no use for GPUs (asked without importing it)."""
    return torch_build().is_cpu_build


def usable_cores() -> int:
    """How many cores this process may run on (its affinity, not the machine's count)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _install_hint() -> str:
    return "install a CUDA build, as https://pytorch.org/get-started/locally tells"


def _because(seen: Visibility) -> str:
    return f" ({'; '.join(seen.said)})" if seen.said else ""


def _unrestricted(counted: tuple[Gpu, ...], certain: bool) -> tuple[VisibleGpu, ...]:
    """Every GPU by its number: that of `nvidia-smi`, which has holes where a GPU is kept from this process."""
    by_bus = order.wanted_order() == order.BY_BUS
    numbered = [(gpu.index if by_bus else position, gpu) for position, gpu in enumerate(counted)]
    return tuple(_visible(number, Entry(str(number), gpu), certain) for number, gpu in numbered)


def _visible(number: int, entry: Entry, certain: bool) -> VisibleGpu:
    """A device named by what cannot be mistaken, its UUID; by its number only if it is not known which GPU that is."""
    if not certain and entry.token.isdigit():
        return VisibleGpu(number, entry.token, None, written=entry.token)
    if entry.slice is not None:
        return VisibleGpu(number, entry.slice.uuid, entry.gpu, entry.slice, entry.token)
    gpu = entry.gpu
    return VisibleGpu(number, gpu.uuid if gpu is not None and gpu.uuid else entry.token, gpu, None, entry.token)


def _order_notes(counted: tuple[Gpu, ...], certain: bool, value: str | None) -> tuple[str, ...]:
    models = {gpu.name for gpu in counted}
    if order.wanted_order() == order.BY_SPEED:
        if not certain:
            return (
                f"{order.VARIABLE}={os.environ[order.VARIABLE]} is obeyed, but CUDA could not be asked which GPU has "
                "which number then; numbers are CUDA's, names are not known",
            )
        pairs = ", ".join(f"{number} is nvidia-smi's {gpu.index} ({gpu.name})" for number, gpu in enumerate(counted))
        differs = any(number != gpu.index for number, gpu in enumerate(counted))
        return (f"{order.VARIABLE}={os.environ[order.VARIABLE]}: {pairs}",) if differs else ()
    if value is not None and len(models) > 1 and order.VARIABLE not in os.environ and value.strip()[:1].isdigit():
        return (
            f"the numbers in {VARIABLE}={value!r} are taken as nvidia-smi's; CUDA by itself would put the fastest GPU "
            f"first (set {order.VARIABLE} to choose)",
        )
    return ()


def _amd_inventory(restriction: str | None) -> Inventory:
    found = amd.visible_gpus(restriction)
    visible = tuple(VisibleGpu(number, token, gpu, None, token) for number, (token, gpu) in enumerate(found.entries))
    return Inventory(visible, found.reason, found.everything, found.hidden, found.said, variable=amd.HIP)
