"""Every `check_*` of this directory, inside ranks: modules on a rank's rows train as on the whole batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from inside.cases import broken_claims, cases


@pytest.mark.parametrize(("path", "check", "ranks"), cases("parallel"))
def test_check(path: Path, check: str, ranks: int) -> None:
    broken = broken_claims(path, check, ranks)
    assert not broken, broken
