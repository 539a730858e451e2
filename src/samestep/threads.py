"""Which thread of the script talks to the other ranks.

Ranks talk in an order that is the same on each, the script's. Two threads of a script have no such order: their
collectives would meet those of the other thread on another rank. So the first that needs one is the only one until it
has ended, or waits for the end of the other, which waits for that: a script does that at the same place on every rank.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
from types import FrameType

from samestep import waiting

#: Seconds that one thread waits for the other.
PATIENCE_S = 10.0
#: Functions in which a thread waits for another's end, by file; and those in which one of a pool waits for work.
_WAITS = {
    ("threading.py", "join"),
    ("threading.py", "_wait_for_tstate_lock"),
    ("_base.py", "result"),
    ("pool.py", "wait"),
}
_IDLE = {("thread.py", "_worker"), ("pool.py", "worker")}


class Talking:
    """The thread of the script that talks."""

    def __init__(self) -> None:
        self._owner: threading.Thread | None = None
        self._number = 0

    def check(self) -> None:
        """A collective begins in this thread. Ends the run if another thread of the script is at it, too."""
        number = _thread.get_ident()
        if number == self._number:
            return
        # Those that Python has not started (autograd's) do what the thread that called backward waits for.
        thread = _known_thread(number)
        if thread is None:
            return
        until = time.monotonic() + PATIENCE_S
        while (owner := self._owner) is not None and owner.is_alive() and not _leaves_it(self._number):
            if time.monotonic() > until:
                self._refuse(owner, thread)
            time.sleep(0.002)
        self._owner, self._number = thread, number

    def _refuse(self, owner: threading.Thread, thread: threading.Thread) -> None:
        waiting.end_run(
            f"two threads of the script, {owner.name} and {thread.name}, need numbers of other devices. Threads of "
            "several processes keep no common order, so the ranks would wait for each other without end. Read batches "
            "and look at losses in one thread; a DataLoader reads ahead by itself with num_workers=1."
        )


def _known_thread(number: int) -> threading.Thread | None:
    found = threading._active.get(number)  # type: ignore[attr-defined]
    return None if found is None or isinstance(found, threading._DummyThread) else found


def _leaves_it(number: int) -> bool:
    """Whether a thread waits for another's end, or for work."""
    frame: FrameType | None = sys._current_frames().get(number)
    if frame is not None and _function(frame) in _IDLE:
        return True
    while frame is not None:
        if _function(frame) in _WAITS:
            return True
        frame = frame.f_back
    return False


def _function(frame: FrameType) -> tuple[str, str]:
    return os.path.basename(frame.f_code.co_filename), frame.f_code.co_name
