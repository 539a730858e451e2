"""Starting a run again in another form, when the script has shown what kind of program it is.

The ranks of the first try leave notes in the directory that they share with the launcher, and end. Main decides: a
program that has already trained, printed or written something cannot be started again without doing that twice.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from samestep.errors import SamestepError
from samestep.launch.context import RankContext
from samestep.launch.mode import Form

_NOTE, _REQUEST = "note{}.json", "again.json"
_EXIT = 75  # EX_TEMPFAIL; never seen by the user
_WAIT_S = 60.0


@dataclass(frozen=True)
class Request:
    """What main asks the launcher for: another form, because of what the script did (`what`)."""

    form: Form
    what: str


def requested(run_dir: Path) -> Request | None:
    """The request that a try has left, if any."""
    path = run_dir / _REQUEST
    if not path.exists():
        return None
    return Request(**json.loads(path.read_text(encoding="utf-8")))


def ask(context: RankContext, request: Request, trained: bool) -> NoReturn:
    """End this rank so that the run starts again; called by every rank at the same line of the script.

    Raises `SamestepError` on main, in the form `same`, if the script has already done something that would be repeated.
    """
    hidden = 0 if context.equal else context.world_size - 1
    if not context.is_main:
        sys.stdout.flush()
        _write(context.run_dir / _NOTE.format(context.rank), {"trained": trained})
        _wait_for(context.run_dir / _REQUEST)
        os._exit(_EXIT)
    if hidden:
        _wait_for(context.run_dir / _NOTE.format(1))
        done = _done_already(context, trained)
        if done:
            raise SamestepError(
                f"the script is a distributed program ({request.what}), which showed only after it had {done}; it is "
                "not started again by itself; run it with samestep run --mode distributed"
            )
    _write(context.run_dir / _REQUEST, asdict(request))
    os._exit(_EXIT)


def _done_already(context: RankContext, trained: bool) -> str | None:
    """What the script has done, judged by rank 1, whose output and files are private."""
    log = context.run_dir / "rank1.stdout"
    files = context.run_dir / "scratch1" / "root"
    if trained:
        return "run a model"
    if files.is_dir() and any(os.scandir(files)):
        return "changed files"
    if log.exists() and log.stat().st_size:
        return "printed something"
    return None


def _write(path: Path, value: dict[str, object]) -> None:
    part = path.with_suffix(".part")
    with open(part, "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(part, path)


def _wait_for(path: Path) -> None:
    end = time.monotonic() + _WAIT_S
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.02)
