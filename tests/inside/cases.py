"""The checks of a directory as pytest cases: every check on 2 and 3 ranks, some files on 4."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest

from inside.launching import TESTS, checks_in, run_checks

#: On 4 ranks too: most values of a batch are then on other ranks, and small batches have fewer rows than ranks.
ALSO_AT_FOUR = {"checks_partial", "checks_regions", "checks_loader"}


def cases(directory: str) -> list[object]:
    """(file, check, ranks) for every check of the `checks_*.py` in a directory below `tests`."""
    return [
        pytest.param(path, check, ranks, id=f"{path.stem[7:]}-{check[6:]}-{ranks}")
        for path in sorted((TESTS / directory).glob("checks_*.py"))
        for ranks in ((2, 3, 4) if path.stem in ALSO_AT_FOUR else (2, 3))
        for check in checks_in(path)
    ]


@functools.cache
def _outcomes(path: Path, ranks: int) -> dict[str, str]:
    """One launch per file and number of ranks, however many of its checks are asked for."""
    with tempfile.TemporaryDirectory() as directory:
        return run_checks(path, ranks, Path(directory))


def broken_claims(path: Path, check: str, ranks: int) -> str:
    """What the check found wrong; empty if nothing."""
    return _outcomes(path, ranks).get(check, "not reached: too many checks before it hung or killed a rank")
