"""Every `check_*` of the `checks_*.py` files, on 2 and 3 ranks: what global tensors give is what plain ones give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inside.launching import TESTS, checks_in, run_checks

FILES = sorted(path for part in ("globalview", "parallel", "data") for path in (TESTS / part).glob("checks_*.py"))
#: On 4 ranks too: most values of a batch are then on other ranks, and small batches have fewer rows than ranks.
ALSO_AT_FOUR = {"checks_partial", "checks_regions", "checks_loader"}


def _cases() -> list[object]:
    return [
        pytest.param(path, check, ranks, id=f"{path.parent.name}-{path.stem[7:]}-{check[6:]}-{ranks}")
        for path in FILES
        for ranks in ((2, 3, 4) if path.stem in ALSO_AT_FOUR else (2, 3))
        for check in checks_in(path)
    ]


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, int], dict[str, str]]:
    """One launch per file and number of ranks, however many of its checks are asked for."""
    done: dict[tuple[Path, int], dict[str, str]] = {}

    def of(path: Path, ranks: int) -> dict[str, str]:
        if (path, ranks) not in done:
            done[path, ranks] = run_checks(path, ranks, tmp_path_factory.mktemp(f"{path.stem}-{ranks}"))
        return done[path, ranks]

    return of


@pytest.mark.parametrize(("path", "check", "ranks"), _cases())
def test_check(path: Path, check: str, ranks: int, outcomes: Callable[[Path, int], dict[str, str]]) -> None:
    broken = outcomes(path, ranks).get(check, "not reached: too many checks before it hung or killed a rank")
    assert not broken, broken
