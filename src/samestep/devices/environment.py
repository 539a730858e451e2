"""The environment variables that give each rank its devices and its share of the cores."""

from __future__ import annotations

import os
from collections.abc import Sequence

from samestep.devices.inventory import usable_cores
from samestep.devices.selection import DeviceSelection

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

# What a launcher such as torchrun or SLURM leaves behind: a framework that finds one of these believes that it
# is one of several processes, while the script must see one.
LAUNCHER_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "NODE_RANK",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NTASKS",
)
LAUNCHER_PREFIXES = ("MASTER_", "TORCHELASTIC_")


def rank_environment(selection: DeviceSelection, rank: int) -> dict[str, str | None]:
    """What the environment of one rank must hold (None: must not hold).

    A rank on GPUs sees all that one process would see, its own at the index by which the script calls its device, so
    that `cuda`, `cuda:0` and `torch.cuda.device_count()` mean to the script what they mean without Samestep.
    """
    changes: dict[str, str | None] = {name: None for name in os.environ if _is_launchers(name)}
    if selection.visible:
        changes[selection.variable] = ",".join(selection.seen_by(rank))
        if selection.kind == "cuda":
            changes["CUDA_DEVICE_ORDER"] = selection.order
    return changes


def apply_environment(changes: dict[str, str | None]) -> None:
    """Make the changes of `rank_environment` to this process."""
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def threads_per_rank(n_ranks: int, cpus: Sequence[frozenset[int] | None] = ()) -> int:
    """The share of the usable cores that one of `n_ranks` processes on this machine gets, at least 1.

    `cpus` are those that each rank will be kept to (None: all): ranks that share some divide them.
    """
    shares = [
        len(mine) // sum(other is None or bool(mine & other) for other in cpus) for mine in cpus if mine is not None
    ]
    return max(1, min([usable_cores() // n_ranks, *shares]))


_written: dict[str, str] = {}


def set_thread_environment(n_ranks: int, cpus: Sequence[frozenset[int] | None] = ()) -> int | None:
    """Divide the cores among the ranks, for libraries that are loaded after this call.

    Returns the number of threads per rank, or None if the user has set OMP_NUM_THREADS: then that holds.
    """
    users = os.environ.get("OMP_NUM_THREADS")
    if users is not None and users != _written.get("OMP_NUM_THREADS"):
        return None  # and the others stay as they are: a smaller MKL_NUM_THREADS would overrule it in torch
    chosen = threads_per_rank(n_ranks, cpus)
    for name in THREAD_VARIABLES:
        value = os.environ.get(name)
        if value is None or value == _written.get(name):  # not set, or by an earlier call of this function
            os.environ[name] = _written[name] = str(chosen)
    return chosen


def _is_launchers(name: str) -> bool:
    return name in LAUNCHER_VARIABLES or name.startswith(LAUNCHER_PREFIXES)
