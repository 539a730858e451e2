"""Runs of a check on all ranks at once, of which one may fail while the others are about to wait for it.

A module may raise for one rank's rows only, before a batch norm for which the other ranks then gather. So while a
module is checked every collective inside it is agreed on first, and a rank that has ended says so until all have.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from samestep import world
from samestep.parallel.stillness import own_reads


class PeerEnded(Exception):
    """Another rank has ended its run, most likely by an exception of the module's."""


class _State(threading.local):
    checking = False


_STATE = _State()


@contextmanager
def in_step() -> Iterator[None]:
    """Within: a run of a check. Every rank must come in and, by an exception or not, out."""
    before, _STATE.checking = _STATE.checking, True
    try:
        yield
    finally:
        _STATE.checking = before
        while not _all_say(ended=True):
            pass


def meet() -> None:
    """Before a collective inside a module; raises `PeerEnded`, in a check, if not every rank comes to it."""
    if _STATE.checking and not _all_say(ended=False):
        raise PeerEnded("another rank's run of this module ended earlier")


def _all_say(*, ended: bool) -> bool:
    here = world.current()
    with own_reads():
        said = here.all_gather(torch.tensor([ended], dtype=torch.uint8), 0, [1] * here.size)
        return bool((said == ended).all())
