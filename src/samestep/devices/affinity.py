"""Each rank on the CPU cores near its GPU, unless the user has said on which cores to run."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from samestep.devices.selection import DeviceSelection

#: Whoever sets one of these has a plan of their own for the cores.
USERS_PLANS = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")

_before: frozenset[int] | None = None


def near_cpus(selection: DeviceSelection, root: Path = Path("/")) -> tuple[frozenset[int] | None, ...]:
    """The CPUs that each rank is to be kept to; None: no others than now."""
    free = (None,) * selection.count
    if not any(selection.near) or not hasattr(os, "sched_getaffinity") or chosen_by_user(root):
        return free
    return keep_to(selection.near, frozenset(os.sched_getaffinity(0)))


def keep_to(near: tuple[tuple[int, ...] | None, ...], allowed: frozenset[int]) -> tuple[frozenset[int] | None, ...]:
    """The CPUs near each device that this process may use at all; None where there is none, or they are all."""
    found = [frozenset(each or ()) & allowed for each in near]
    return tuple(each if each and each != allowed else None for each in found)


def chosen_by_user(root: Path = Path("/")) -> bool:
    """Whether somebody has chosen cores for this process: a plan in the environment, `taskset`, a scheduler.

    What a container or a batch system takes away for all its processes is no choice for this one.
    """
    if any(name in os.environ for name in USERS_PLANS):
        return True
    given = _cpuset(root) or _read_cpus(root / "sys/devices/system/cpu/online")
    return given is not None and frozenset(os.sched_getaffinity(0)) != given


def pin(cpus: frozenset[int] | None) -> None:
    """Keep this process to some CPUs; `cpus_before` then tells which it had."""
    global _before
    if cpus is not None and hasattr(os, "sched_setaffinity"):
        before = frozenset(os.sched_getaffinity(0))
        with contextlib.suppress(OSError):  # taken offline, or forbidden: slower, not wrong
            os.sched_setaffinity(0, cpus)
            _before = before


def cpus_before() -> frozenset[int] | None:
    """The CPUs that this process had before `pin`; None if it was not pinned."""
    return _before


def parse_cpus(text: str) -> frozenset[int]:
    """The kernel's way of writing CPUs: `0-3,8,10-11`."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _cpuset(root: Path) -> frozenset[int] | None:
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                return _nearest(root / "sys/fs/cgroup", path, "cpuset.cpus.effective")
            if "cpuset" in controllers.split(","):
                return _nearest(root / "sys/fs/cgroup/cpuset", path, "cpuset.effective_cpus")
    return None


def _nearest(top: Path, path: str, name: str) -> frozenset[int] | None:
    """The setting of a control group, or of the nearest one above it that has it."""
    folder = top / path.lstrip("/")
    while True:
        found = _read_cpus(folder / name)
        if found or folder == top or top not in folder.parents:
            return found
        folder = folder.parent


def _read_cpus(path: Path) -> frozenset[int] | None:
    with contextlib.suppress(OSError, ValueError):
        return parse_cpus(path.read_text()) or None
    return None
