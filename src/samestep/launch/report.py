"""Telling the user of the failure that ended a run: once, and only the one that matters."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from samestep.launch.channel import Failure
from samestep.launch.supervisor import Outcome

_TAIL_LINES = 20
_TAIL_BYTES = 16384
_ABORTED = (
    ". Gloo does that, for one, when ranks send each other different things, because the script has gone another way "
    "on some rank: an exception that one rank's rows alone have raised and the script has caught, a signal that came "
    "to them at different steps, something that is not the same in all processes\n"
)


def report(outcome: Outcome, run_dir: Path) -> None:
    """Write to stderr what main has not told itself."""
    if outcome.failure is not None and sys.stderr is not None:
        sys.stderr.write(describe(outcome.failure, outcome.world_size, run_dir))
        sys.stderr.flush()


def describe(failure: Failure, world_size: int, run_dir: Path) -> str:
    """The failure in full: which rank, how, its traceback and the end of its log."""
    who = f"samestep: rank {failure.rank} of {world_size}" + (" (main)" if failure.rank == 0 else "")
    if failure.kind == "signal":
        text = f"{who} was killed by {signal_name(failure.signal)} (exit code {failure.code})\n"
        if failure.signal == signal.SIGKILL:
            text = text[:-1] + "; the system does that, for one, when memory runs out\n"
        if failure.signal == signal.SIGABRT and world_size > 1:
            text = text[:-1] + _ABORTED
    elif failure.text:
        text = f"{who} failed (exit code {failure.code}):\n{failure.text}"
    else:
        text = f"{who} failed (exit code {failure.code}) without a message\n"
    return text + ("" if failure.rank == 0 else _log(failure, run_dir))


def signal_name(number: int | None) -> str:
    """The name of a signal, such as SIGSEGV."""
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


def _log(failure: Failure, run_dir: Path) -> str:
    for stream in ("stderr", "stdout"):
        lines = _tail(run_dir / f"rank{failure.rank}.{stream}")
        if lines:
            body = "".join(f"  {line}\n" for line in lines)
            return f"samestep: the {stream} of rank {failure.rank} ended with:\n{body}"
    return ""


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return text.rstrip().splitlines()[-_TAIL_LINES:]
