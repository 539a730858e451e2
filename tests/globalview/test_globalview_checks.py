"""Every `check_*` of this directory, inside ranks: global tensors give what plain ones give."""

from __future__ import annotations

from pathlib import Path

import pytest

from inside.cases import broken_claims, cases


@pytest.mark.parametrize(("path", "check", "ranks"), cases("globalview"))
def test_check(path: Path, check: str, ranks: int) -> None:
    broken = broken_claims(path, check, ranks)
    assert not broken, broken
