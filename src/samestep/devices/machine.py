"""The machine besides its GPUs: processors, cores, NUMA nodes, memory."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.devices.affinity import parse_cpus
from samestep.devices.inventory import usable_cores


@dataclass(frozen=True)
class NumaNode:
    """A part of the machine with its own memory (bytes; None if that is not told)."""

    number: int
    cpus: tuple[int, ...]
    memory: int | None


@dataclass(frozen=True)
class Machine:
    """What CPU processes have to run on. `usable` are the logical CPUs that this process may use.

    `memory_limit` is that of the container or batch job, None without one. Counts that the system does not tell are
    None.
    """

    model: str | None
    sockets: int | None
    cores: int | None
    cpus: int
    usable: int
    nodes: tuple[NumaNode, ...]
    memory_total: int
    memory_available: int
    memory_limit: int | None


def describe_machine(root: Path = Path("/")) -> Machine:
    """Look at the machine through /proc and /sys (below `root`)."""
    psutil: Any = importlib.import_module("psutil")
    memory = psutil.virtual_memory()
    places = _places(root)
    return Machine(
        model=_model(root),
        sockets=len({socket for socket, _ in places}) or None,
        cores=len(places) or psutil.cpu_count(logical=False),
        cpus=os.cpu_count() or 1,
        usable=usable_cores(),
        nodes=_nodes(root),
        memory_total=int(memory.total),
        memory_available=int(memory.available),
        memory_limit=_limit(root, int(memory.total)),
    )


def _places(root: Path) -> set[tuple[str, str]]:
    """Socket and core of each logical CPU."""
    found = set()
    for folder in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/topology"):
        with contextlib.suppress(OSError):
            found.add(((folder / "physical_package_id").read_text().strip(), (folder / "core_id").read_text().strip()))
    return found


def _model(root: Path) -> str | None:
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", (root / "proc/cpuinfo").read_text(), re.MULTILINE)
        return found[1].strip() if found is not None else None
    return None


def _nodes(root: Path) -> tuple[NumaNode, ...]:
    nodes = []
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            cpus = tuple(sorted(parse_cpus((folder / "cpulist").read_text())))
            nodes.append(NumaNode(int(folder.name[4:]), cpus, _node_memory(folder)))
    return tuple(sorted(nodes, key=lambda node: node.number))


def _node_memory(folder: Path) -> int | None:
    with contextlib.suppress(OSError):
        found = re.search(r"MemTotal:\s*(\d+) kB", (folder / "meminfo").read_text())
        return int(found[1]) * 1024 if found is not None else None
    return None


def _limit(root: Path, total: int) -> int | None:
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            limit = int((root / "sys/fs/cgroup" / name).read_text())
            return limit if limit < total else None
    return None
