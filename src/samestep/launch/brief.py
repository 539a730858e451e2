"""A traceback with the user's own frames, where those of libraries would drown them.

For the ranks of a distributed program: an error in a training step of Lightning's comes through forty frames of
libraries, once for each rank.
"""

from __future__ import annotations

import os
import sysconfig
import traceback

from samestep.launch import traces

_LONGEST = 1 << 20


def brief_text(error: BaseException) -> str:
    """The traceback as text, runs of libraries' frames shortened to one line; the innermost frame always stays.

    SAMESTEP_FULL_TRACEBACK shows all of it.
    """
    whole = traces.as_text(error)
    if os.environ.get(traces.FULL) or isinstance(error, SyntaxError) or not _users_part(error):
        return whole
    lines: list[str] = []
    for shown in traceback.TracebackException.from_exception(error).format():
        lines += [shown]
    text = "".join(_shortened(lines))
    return text[-_LONGEST:]


def _users_part(error: BaseException) -> bool:
    return any(_is_users(frame.filename) for frame in traceback.extract_tb(error.__traceback__))


def _shortened(lines: list[str]) -> list[str]:
    """`lines` as `format` gives them, one entry a frame, with each run of libraries' frames as one."""
    kept: list[str] = []
    run: list[str] = []
    for at, line in enumerate(lines):
        last = at + 1 == len(lines) or not lines[at + 1].startswith('  File "')
        if line.startswith('  File "') and not _is_users(line.split('"')[1]) and not last:
            run.append(line)
            continue
        if len(run) > 1:
            kept.append(f"  … {len(run)} frames in {', '.join(dict.fromkeys(map(_library, run)))} …\n")
        else:
            kept += run
        run = []
        kept.append(line)
    return kept


def _library(frame: str) -> str:
    """The package that a frame's file belongs to."""
    path = frame.split('"')[1]
    for place in _places():
        if path.startswith(place):
            return path[len(place) :].split(os.sep)[0].removesuffix(".py")
    return "Python"


def _places() -> list[str]:
    names = ("purelib", "platlib", "stdlib")
    return [os.path.join(place, "") for place in dict.fromkeys(map(sysconfig.get_path, names)) if place]


def _is_users(filename: str) -> bool:
    return not filename.startswith((*_places(), "<frozen "))
