"""Samestep: the training step you wrote, on every device you have.

`samestep run train.py` is all that most scripts need. What is public in code is listed in `__all__`; everything is
imported on first use, so that the command line answers at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "DataParallel": "samestep.parallel.data_parallel",
    "GlobalTensor": "samestep.globalview.tensor",
    "SamestepError": "samestep.errors",
    "barrier": "samestep.public",
    "is_main": "samestep.public",
    "launch": "samestep.launch.api",
    "local": "samestep.public",
    "print_all": "samestep.public",
    "rank": "samestep.public",
    "rowwise": "samestep.data.loader",
    "shard": "samestep.public",
    "whole": "samestep.public",
    "world_size": "samestep.public",
}
__all__ = sorted(_HOME)

if TYPE_CHECKING:
    from samestep.data.loader import rowwise as rowwise
    from samestep.errors import SamestepError as SamestepError
    from samestep.globalview.tensor import GlobalTensor as GlobalTensor
    from samestep.launch.api import launch as launch
    from samestep.parallel.data_parallel import DataParallel as DataParallel
    from samestep.public import barrier as barrier
    from samestep.public import is_main as is_main
    from samestep.public import local as local
    from samestep.public import print_all as print_all
    from samestep.public import rank as rank
    from samestep.public import shard as shard
    from samestep.public import whole as whole
    from samestep.public import world_size as world_size


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'samestep' has no attribute {name!r}")
    # The submodule `samestep.launch` has the name of a function: once imported it would shadow it.
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
