"""The processes below the launcher, so that none is left behind."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import sys
from collections.abc import Iterable
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


def adopt_orphans(adopt: bool) -> bool:
    """Become the parent of processes whose parent, a rank, dies (Linux), so that they can still be found.

    Returns what was set before.
    """
    if sys.platform != "linux":
        return False
    library = ctypes.CDLL(None)
    before = ctypes.c_int(0)
    library.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
    library.prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))
    return bool(before.value)


def descendants(pid: int | None = None) -> set[Any]:
    """The processes below `pid` (None: this one), as `psutil.Process`; none if it is gone."""
    psutil = _psutil()
    try:
        return set(psutil.Process(os.getpid() if pid is None else pid).children(recursive=True))
    except psutil.Error:
        return set()


def kill(processes: Iterable[Any]) -> None:
    """Kill processes and wait until they are gone."""
    psutil = _psutil()
    doomed = list(processes)
    for process in doomed:
        with contextlib.suppress(psutil.Error):
            process.kill()
    if doomed:
        psutil.wait_procs(doomed, timeout=5)


def _psutil() -> Any:
    return importlib.import_module("psutil")  # not typed
