"""The checks of a directory as pytest cases: every check on 2 and 3 ranks, some files on 4."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest

from inside.launching import TESTS, checks_in, run_checks

#: On 4 ranks too: most values of a batch are then on other ranks, and small batches have fewer rows than ranks.
ALSO_AT_FOUR = {"checks_partial", "checks_regions", "checks_loader", "checks_world"}
#: Checks of many cases that take most of a minute on 3 ranks and two cores: there only in `make conformance`.
LONG = {
    "checks_batch_norm": {"check_every_kind_of_norm"},
    "checks_compile": {"check_compiled_models"},
    "checks_exact_random": {
        "check_every_way_to_draw",
        "check_every_way_to_draw_continued",
        "check_every_way_to_draw_to_the_end",
    },
    "checks_iteration": {"check_workers"},
    "checks_losses": {"check_classification_losses"},
    "checks_outputs": {"check_every_form_of_output"},
}


def cases(directory: str) -> list[object]:
    """(file, check, ranks) for every check of the `checks_*.py` in a directory below `tests`."""
    return [
        pytest.param(
            path,
            check,
            ranks,
            id=f"{path.stem[7:]}-{check[6:]}-{ranks}",
            marks=[pytest.mark.conformance] if _is_long(path, check, ranks) else [],
        )
        for path in sorted((TESTS / directory).glob("checks_*.py"))
        for ranks in ((2, 3, 4) if path.stem in ALSO_AT_FOUR else (2, 3))
        for check in checks_in(path)
    ]


def _is_long(path: Path, check: str, ranks: int) -> bool:
    return ranks > 2 and check in LONG.get(path.stem, ())


@functools.cache
def _outcomes(path: Path, ranks: int, long: bool) -> dict[str, str]:
    """One launch per file and number of ranks, however many of its checks are asked for; of long ones one more."""
    names = [check for check in checks_in(path) if _is_long(path, check, ranks) == long]
    with tempfile.TemporaryDirectory() as directory:
        return run_checks(path, ranks, Path(directory), names)


def broken_claims(path: Path, check: str, ranks: int) -> str:
    """What the check found wrong; empty if nothing."""
    found = _outcomes(path, ranks, _is_long(path, check, ranks))
    return found.get(check, "not reached: too many checks before it hung or killed a rank")
