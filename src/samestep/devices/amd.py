"""AMD's GPUs, which PyTorch's ROCm build also calls `cuda`: what the kernel tells, and the three variables."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep.devices.gpus import Gpu
from samestep.devices.visibility import plain_characters

ROCR, HIP, CUDA = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Found:
    """The visible GPUs with their entries for HIP_VISIBLE_DEVICES; without any, the reason."""

    entries: tuple[tuple[str, Gpu], ...]
    reason: str | None
    everything: tuple[Gpu, ...] = ()
    hidden: str | None = None
    said: tuple[str, ...] = ()


def visible_gpus(restriction: str | None = None, root: Path = Path("/")) -> Found:
    """The AMD GPUs that a process sees. `restriction` is what a script has put into CUDA_VISIBLE_DEVICES."""
    gpus = kernel_gpus(root)
    if not gpus:
        loaded = (root / "dev/kfd").exists()
        return Found((), "the AMD driver lists no GPU" if loaded else "no AMD driver (there is no /dev/kfd)")
    environment = dict(os.environ)
    if restriction is not None:
        environment[CUDA] = restriction
    positions, said = read_variables(environment, gpus)
    hidden = ", ".join(f"{name}={environment[name]!r}" for name in (ROCR, HIP, CUDA) if name in environment) or None
    if not positions:
        return Found((), f"{hidden} hides every GPU" + (f" ({'; '.join(said)})" if said else ""), gpus, hidden, said)
    # HIP counts behind ROCR, so its entries are positions in what ROCR leaves.
    return Found(tuple((str(at), gpu) for at, gpu in positions), None, gpus, hidden, said)


def read_variables(
    environment: Mapping[str, str], gpus: Sequence[Gpu]
) -> tuple[tuple[tuple[int, Gpu], ...], tuple[str, ...]]:
    """The visible GPUs, each with its number for HIP_VISIBLE_DEVICES, and what ROCm does without a word.

    ROCR_VISIBLE_DEVICES is read first. HIP_VISIBLE_DEVICES, or CUDA_VISIBLE_DEVICES in its place, then counts only what
    that has left. The first entry that is not there cuts a list.
    """
    said: list[str] = []
    left = list(gpus)
    if ROCR in environment:
        left = _listed(ROCR, environment[ROCR], left, said)
    counted = list(enumerate(left))
    name = HIP if HIP in environment else CUDA
    if name not in environment:
        return tuple(counted), tuple(said)
    if HIP in environment and CUDA in environment and environment[HIP] != environment[CUDA]:
        said.append(f"{HIP} and {CUDA} are both set and differ; ROCm takes {HIP}")
    chosen = _listed(name, environment[name], left, said)
    if ROCR in environment and not chosen and left and environment[name].strip():
        said.append(
            f"{ROCR} leaves {len(left)} GPU{'s' if len(left) > 1 else ''}, which {name} counts from 0: "
            f"unset one of the two"
        )
    return tuple((left.index(gpu), gpu) for gpu in chosen), tuple(said)


def _listed(name: str, value: str, gpus: list[Gpu], said: list[str]) -> list[Gpu]:
    found: list[Gpu] = []
    parts = plain_characters(value).split(",")
    for part in (each.strip() for each in parts):
        if re.fullmatch(r"[0-9]{1,6}", part):
            gpu = gpus[int(part)] if int(part) < len(gpus) else None
        else:
            matches = [each for each in gpus if part.startswith("GPU-") and each.uuid.lower() == part.lower()]
            gpu = matches[0] if matches else None
        if gpu is None:
            if part and part != "-1":
                said.append(f"in {name}={value!r} the entry {part!r} is not there; ROCm ignores it and all behind it")
            break
        if gpu not in found:
            found.append(gpu)
    return found


def kernel_gpus(root: Path = Path("/")) -> tuple[Gpu, ...]:
    """The GPUs of AMD's kernel driver, in its order (which is that of ROCm)."""
    gpus: list[Gpu] = []
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    with contextlib.suppress(OSError):
        for node in sorted(nodes.iterdir(), key=lambda path: int(path.name)):
            properties = _properties(node / "properties")
            if properties.get("simd_count", 0) > 0:
                gpus.append(_gpu(len(gpus), properties, root))
    return tuple(gpus)


def _gpu(index: int, properties: dict[str, int], root: Path) -> Gpu:
    location, domain = properties.get("location_id", 0), properties.get("domain", 0)
    pci = f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
    device = root / "sys/bus/pci/devices" / pci
    unique = properties.get("unique_id", 0)
    return Gpu(
        index=index,
        name=_text(device / "product_name") or f"AMD GPU (gfx target {properties.get('gfx_target_version', 0)})",
        uuid=f"GPU-{unique:016x}" if unique else "",
        pci=pci,
        memory_total=_number(device / "mem_info_vram_total") or 0,
        memory_used=_number(device / "mem_info_vram_used") or 0,
        utilisation=_number(device / "gpu_busy_percent"),
    )


def _properties(path: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if value.strip().isdigit():
                found[name] = int(value)
    return found


def _text(path: Path) -> str | None:
    with contextlib.suppress(OSError):
        return path.read_text().strip() or None
    return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdigit() else None
