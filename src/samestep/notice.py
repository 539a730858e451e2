"""What Samestep itself says: one line each on stderr, on the main rank only."""

from __future__ import annotations

import sys

_said: set[str] = set()
_speaks = True


def set_speaker(speaks: bool) -> None:
    """Decide whether this process may speak (only the main rank does)."""
    global _speaks
    _speaks = speaks


def notice(text: str) -> None:
    """Write one line to stderr, prefixed `samestep:`; silent on ranks other than main."""
    if _speaks:
        stream = sys.__stderr__ or sys.stderr
        if stream is not None:
            stream.write(f"samestep: {text}\n")
            stream.flush()


def notice_once(text: str) -> None:
    """Like `notice`, but the same text is said only once in a run."""
    if text not in _said:
        _said.add(text)
        notice(text)
