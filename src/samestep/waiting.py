"""Ranks that wait for each other: found out, and said with the script's lines.

Every rank notes what it waits for, and a thread of each writes it into a file of the run's directory from time to
time, with the line of the script. Main's thread reads what all have written. Where all wait, for different things,
nobody will ever go on: the run is ended with every rank's line. Where some wait very long for one that does not, main
says once where that one is. Nothing of this costs a running step more than a few assignments.
"""

from __future__ import annotations

import _thread
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from samestep.ledger import script_line
from samestep.notice import notice

#: Seconds that all ranks wait for different things before the run is ended.
PATIENCE_VARIABLE = "SAMESTEP_PATIENCE"
PATIENCE_S = 30.0
#: So many times longer some may wait for one that computes, before it is said.
_LONG = 10
#: The same finding so many times in a row is one.
_FINDINGS = 3
_SLOT = 512

_pwrite, _pread, _open = os.pwrite, os.pread, os.open


class Current:
    """What this process waits for: `since` is 0.0 while it does not wait."""

    count = 0
    what = ""
    since = 0.0


CURRENT = Current()
#: What a rank waits for that has come to the end of its script.
_END = "end"


def script_ended() -> None:
    """The script has come to its end here: whoever still waits for this rank waits in vain."""
    CURRENT.what, CURRENT.since = _END, time.monotonic()


@dataclass(frozen=True)
class Standing:
    """Where a rank is: how many waits it has begun, what it waits for (empty: nothing), for how long, and its line."""

    count: int
    what: str
    seconds: float
    line: str

    def told(self, rank: int) -> str:
        """In words."""
        if self.what == _END:
            return f"rank {rank} at the end of the script"
        return f"rank {rank} {f'in an {self.what} ' if self.what else ''}at {self.line}"


def _end(text: str) -> None:
    notice(text)
    os._exit(1)


#: What to do when the ranks can never go on; the launcher's side of a rank sets it.
end_run: Callable[[str], None] = _end


def verdict(standings: list[Standing], patience: float) -> str | None:
    """What to say if the ranks can never go on, else None."""
    if len(standings) < 2 or any(not s.what or s.seconds < patience for s in standings):
        return None
    if len({(s.count, s.what) for s in standings}) == 1 or all(s.what == _END for s in standings):
        return None  # they are about to go on together, or to end
    places = ", ".join(s.told(rank) for rank, s in enumerate(standings))
    return (
        f"the ranks wait for different things and would wait for ever: {places}. The script has gone another way on "
        "some rank: something that is not the same in all processes (a clock, a generator without a seed, a file, "
        "`samestep.local` or `samestep.rank()`, an exception that one rank's rows alone have raised) has decided there"
    )


def laggard(standings: list[Standing], patience: float) -> str | None:
    """What to say of a rank that keeps others waiting very long, else None."""
    waiting = [rank for rank, s in enumerate(standings) if s.what not in ("", _END) and s.seconds >= _LONG * patience]
    others = [rank for rank, s in enumerate(standings) if not s.what]
    if not waiting or not others:
        return None
    first = waiting[0]
    seconds = standings[first].seconds
    return f"{standings[first].told(first)} has waited {seconds:.0f} s for {standings[others[0]].told(others[0])}"


class Watch:
    """One rank's watch; `run_dir` is shared by the ranks."""

    def __init__(self, rank: int, size: int, run_dir: Path, patience: float) -> None:
        self._rank, self._size, self._patience = rank, size, patience
        self._file = _open(str(run_dir / "waiting"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._script_thread = threading.get_ident()
        self._last = ""
        self._repeats = 0
        self._said = -1

    def run(self) -> None:
        """Look from time to time, for ever."""
        period = min(5.0, self._patience / 4)
        while True:
            time.sleep(period)
            try:
                self._write(self._standing())
                if self._rank == 0:
                    self._examine(self._read(4 * period))
            except (OSError, ValueError):
                return  # the run's directory is gone: the run is over

    def _standing(self) -> Standing:
        since, what, count = CURRENT.since, CURRENT.what, CURRENT.count
        frame = sys._current_frames().get(self._script_thread)
        file, line = script_line(frame) if frame is not None else ("<unknown>", 0)
        seconds = time.monotonic() - since if since else 0.0
        return Standing(count, what if since else "", seconds, f"{os.path.basename(file)}:{line}"[:200])

    def _write(self, standing: Standing) -> None:
        text = json.dumps({**asdict(standing), "at": time.monotonic()})
        _pwrite(self._file, text.encode().ljust(_SLOT), self._rank * _SLOT)

    def _read(self, freshness: float) -> list[Standing]:
        """All ranks' standings; none if some rank's is old (it is starting, ending or stopped)."""
        found = []
        for rank in range(self._size):
            text = _pread(self._file, _SLOT, rank * _SLOT).decode().strip(" \0")
            if not text:
                return []
            record = json.loads(text)
            if time.monotonic() - record.pop("at") > freshness:
                return []
            found.append(Standing(**record))
        return found

    def _examine(self, standings: list[Standing]) -> None:
        text = verdict(standings, self._patience)
        self._repeats = self._repeats + 1 if text is not None and text == self._last else int(text is not None)
        self._last = text or ""
        if text is not None and self._repeats >= _FINDINGS:
            end_run(text)
        text = laggard(standings, self._patience)
        if text is not None and self._said != CURRENT.count:
            self._said = CURRENT.count
            notice(text)


def watch(rank: int, size: int, run_dir: Path) -> None:
    """Start this rank's watch, from the thread that runs the script."""
    given = os.environ.get(PATIENCE_VARIABLE, "")
    try:
        patience = float(given) if given else PATIENCE_S
    except ValueError:
        notice(f"{PATIENCE_VARIABLE}={given!r} is no number of seconds; {PATIENCE_S:.0f} are taken")
        patience = PATIENCE_S
    if size > 1 and patience > 0:
        # Not a threading.Thread: the script does not see it among its threads.
        _thread.start_new_thread(Watch(rank, size, run_dir, patience).run, ())
