"""How long to wait for free GPUs: reading `--wait`."""

from __future__ import annotations

import os
import re

from samestep.errors import SamestepError

_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_TIME = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)(s|m|min|h|d)?")


def meant_as_time(word: str) -> bool:
    """Whether a word of the command line is a time, as `10m` and `90` are, or a mistaken one: `10x`, unless a file is
    called so."""
    return _TIME.fullmatch(word) is not None or (word[:1].isdigit() and "." not in word and not os.path.exists(word))


def wait_limit(written: str | None) -> float | None:
    """Seconds that `--wait` allows: None without it, infinity if it names no time.

    Raises `SamestepError` for what is not a time.
    """
    if written is None:
        return None
    if not written:
        return float("inf")
    found = _TIME.fullmatch(written)
    if found is None:
        raise SamestepError(f"--wait={written}: {written!r} is not a time; write --wait=90s, --wait=10m or --wait=2h")
    return float(found[1]) * _SECONDS[found[2] or ""]
