"""How the ranks of a run tell the launcher which devices their script has chosen, and end to be started again on those.

Every rank comes to the same line; main asks, and all end there. What main has printed until then is not printed twice.
A script that has changed files or read its input by then is not run twice: it is told what to write instead.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from samestep.errors import SamestepError
from samestep.launch.context import RankContext

_REQUEST, _NOTE = "devices.json", "devices-seen.json"
_EXIT = 75  # EX_TEMPFAIL; never seen by the user
_WAIT_S = 60.0


@dataclass(frozen=True)
class DeviceChoice:
    """What a script has chosen.

    Attributes:
        visible: what it has put into CUDA_VISIBLE_DEVICES; None: nothing.
        places: the indices of its devices among those that it sees; None: all of them.
        who: what it did and where: `os.environ["CUDA_VISIBLE_DEVICES"] = "1,3" (train.py, line 7)`.
        printed: whether main has written something by then, which is not to be seen twice.
    """

    visible: str | None
    places: tuple[int, ...] | None
    who: str
    printed: bool = False


def asked(run_dir: Path) -> DeviceChoice | None:
    """The choice that the ranks of a try have left for the launcher, if any."""
    path = run_dir / _REQUEST
    if not path.exists():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    places = found["places"]
    return DeviceChoice(found["visible"], None if places is None else tuple(places), found["who"], found["printed"])


# ---------------------------------------------------------------------- in a rank
def ask(context: RankContext, choice: DeviceChoice, flush: Callable[[], None], has_read: bool) -> NoReturn:
    """End this rank so that the run starts again on the script's devices; every rank calls it at the same line.

    Raises `SamestepError` on main if the script has done something that it must not do twice.
    """
    flush()
    if not context.is_main:
        if context.rank == 1:
            _write(context.run_dir / _NOTE, _done_by(context))
        _wait_for(context.run_dir / _REQUEST)
        os._exit(_EXIT)
    done = _seen(context)
    trouble = "read its input" if has_read else "changed files" if done["files"] else None
    if trouble is not None:
        raise SamestepError(
            f"the script chooses its devices itself, by {choice.who}, but only after it has {trouble}, so it is not "
            f"started again; run it with --devices {written(choice)}"
        )
    _write(context.run_dir / _REQUEST, {**asdict(choice), "printed": bool(done["printed"])})
    os._exit(_EXIT)


def written(choice: DeviceChoice) -> str:
    """The choice as `--devices` takes it, as nearly as it can be said without looking at the machine."""
    if choice.places is None:
        return choice.visible or "cpu:2"
    if choice.visible is None:
        return ",".join(map(str, choice.places))
    entries = [each.strip() for each in choice.visible.split(",")]
    return ",".join(entries[place] for place in choice.places if place < len(entries))


def _done_by(context: RankContext) -> dict[str, bool]:
    """What rank 1 has done, which does what main does and whose output and files are its own."""
    logs = [context.log("stdout"), context.log("stderr")]
    files = context.run_dir / "scratch1" / "root"
    return {
        "printed": any(log.exists() and log.stat().st_size > 0 for log in logs),
        "files": files.is_dir() and any(os.scandir(files)),
    }


def _seen(context: RankContext) -> dict[str, bool]:
    if context.world_size == 1:  # nobody to judge by: what was printed, if anything, is not printed again
        return {"printed": True, "files": False}
    note = context.run_dir / _NOTE
    _wait_for(note)
    if not note.exists():
        return {"printed": False, "files": False}
    found: dict[str, bool] = json.loads(note.read_text(encoding="utf-8"))
    return found


def _write(path: Path, value: dict[str, object] | dict[str, bool]) -> None:
    part = path.with_suffix(".part")
    with open(part, "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(part, path)


def _wait_for(path: Path) -> None:
    end = time.monotonic() + _WAIT_S
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.02)


# ---------------------------------------------------------------------- what was printed already
_repeating = False
_held: tuple[int, int, list[int]] | None = None


def repeat(printed: bool) -> None:
    """Say, before the ranks are forked, whether main is to repeat in silence what it has printed in the try before."""
    global _repeating
    _repeating = printed


def hush(context: RankContext) -> None:
    """On main in a second try: keep what it writes from the terminal until it comes to its choice again."""
    global _held
    if not _repeating or not context.is_main or _held is not None:
        return
    hidden = os.open(context.run_dir / "repeated", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    kept = [os.dup(1), os.dup(2)]
    for number in (1, 2):
        os.dup2(hidden, number)
    _held = (hidden, os.getpid(), kept)


def speak(flush: Callable[[], None], *, lost: bool = False) -> None:
    """Give main its terminal back. `lost`: it never came to its choice, so what it wrote was no repetition: show it."""
    global _held
    if _held is None or _held[1] != os.getpid():
        return
    hidden, _, kept = _held
    _held = None
    flush()
    for number, saved in zip((1, 2), kept, strict=True):
        os.dup2(saved, number)
        os.close(saved)
    if lost:
        os.lseek(hidden, 0, os.SEEK_SET)
        while chunk := os.read(hidden, 65536):
            os.write(1, chunk)
    os.close(hidden)
