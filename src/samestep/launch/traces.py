"""A rank's uncaught exception as the user should see it: the user's frames, as plain Python prints them."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from pathlib import Path
from types import TracebackType

from samestep.errors import PeerLost, SamestepError

_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep
#: Where devices compute on their rows, and what an error says that is about them.
_OF_ROWS = tuple(str(Path(_PACKAGE) / part) + os.sep for part in ("globalview", "parallel"))
_SHAPES = re.compile(r"shape|size|dimension|\d+x\d+", re.IGNORECASE)
FULL = "SAMESTEP_FULL_TRACEBACK"  # set to anything: Samestep's own frames are shown, too
_LONGEST = 1 << 20

# Errors of torch.distributed that come from the other end having gone away.
_LOST_TYPES = ("DistBackendError", "DistNetworkError", "DistStoreError")
_LOST_TEXTS = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "gloo/transport")


def cut(error: BaseException) -> None:
    """Take Samestep's own frames out of the tracebacks of an exception and of those it is chained to.

    The innermost frame stays: where it is Samestep's, the error may be Samestep's, and must be findable. Not of an
    interrupt, which comes wherever the program is.
    """
    if _tells_of_rows(error) and hasattr(error, "add_note"):  # Python 3.10 knows no notes
        error.add_note("(samestep: shapes in this message may be those of one device's rows, not of the whole batch)")
    if os.environ.get(FULL):
        return
    for each in chain(error):
        unread = each is error and isinstance(each, SyntaxError)  # perhaps of the script itself, see _cut
        inner = not isinstance(each, KeyboardInterrupt)
        each.__traceback__ = _cut(each.__traceback__, leading=each is error, unread=unread, inner=inner)


def chain(error: BaseException) -> list[BaseException]:
    """An exception with its causes, contexts and, for groups, members; each once."""
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or any(each is other for other in found):
            continue
        found.append(each)
        members = getattr(each, "exceptions", ())
        waiting += [each.__cause__, each.__context__]
        waiting += [member for member in members if isinstance(member, BaseException)] if _is_group(each) else []
    return found


def follows_from_lost_peer(error: BaseException) -> bool:
    """Whether an exception came about because another rank went away: then that rank's failure is the one to tell."""
    return any(_is_lost(each) for each in chain(error))


def as_text(error: BaseException) -> str:
    """The traceback as text; of a `SamestepError`, its message alone."""
    if isinstance(error, SamestepError):
        return refusal(error)
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    return "".join(lines)[-_LONGEST:]


def refusal(error: SamestepError) -> str:
    """The line that tells the user what Samestep refused to do, with the script's line that asked for it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"samestep: {error}{place}\n"


def show(error: BaseException) -> None:
    """Print an uncaught exception on stderr as the interpreter does, through the script's `sys.excepthook`."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()  # Python, too, writes out what the script printed before the traceback
    if isinstance(error, SamestepError):
        write_error(refusal(error))
        return
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as second:  # the interpreter lets nothing out of a hook, either
        cut(second)
        write_error("Error in sys.excepthook:\n")
        sys.__excepthook__(type(second), second, second.__traceback__)
        write_error("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)


def write_error(text: str) -> None:
    """Write to stderr as it is now, if there is one."""
    if sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()


def _is_group(error: BaseException) -> bool:
    return any(base.__name__ == "BaseExceptionGroup" for base in type(error).__mro__)  # not a name in Python 3.10


def _is_lost(error: BaseException) -> bool:
    if isinstance(error, PeerLost) or type(error).__name__ in _LOST_TYPES:
        return True
    return type(error) is RuntimeError and any(text in str(error) for text in _LOST_TEXTS)


def _tells_of_rows(error: BaseException) -> bool:
    """Whether an error speaks of shapes and came up where a device computes its rows."""
    if isinstance(error, SamestepError) or not _SHAPES.search(str(error)):
        return False
    names = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(name.startswith(_OF_ROWS) for name in names)


def _is_ours(filename: str) -> bool:
    return filename.startswith(_PACKAGE)


def _is_users(filename: str) -> bool:
    library = (sys.prefix + os.sep, sys.base_prefix + os.sep, "<frozen ")
    return not _is_ours(filename) and not filename.startswith(library)


def _cut(trace: TracebackType | None, leading: bool, unread: bool, inner: bool) -> TracebackType | None:
    """The traceback without Samestep's frames: the leading ones, where the user has no part, and those in between; the
    innermost is kept if `inner` says so, or if there is no other.

    `unread`: the error may be that the script could not be compiled. Then all frames are Samestep's and none is shown.
    """
    entries: list[TracebackType] = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    ours = [_is_ours(entry.tb_frame.f_code.co_filename) for entry in entries]
    if unread and False not in ours:
        return None
    start = ours.index(False) if leading and False in ours else 0
    last = len(entries) - 1 if inner or False not in ours else None
    kept = [entry for at, entry in enumerate(entries) if at >= start and (not ours[at] or at == last)]
    result: TracebackType | None = None
    for entry in reversed(kept):
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result
