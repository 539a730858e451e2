"""Random small programs, drawn by hypothesis: values, gradients and errors are those of plain tensors."""

from __future__ import annotations

import pytest

from conformance.launching_judges import run_judge


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_random_programs(ranks: int) -> None:
    """The same programs every day."""
    assert "120 programs, 0 failures" in run_judge("random_programs.py", ranks, "--programs", "120", seconds=900)


@pytest.mark.conformance
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_many_random_programs(ranks: int) -> None:
    """Three thousand programs."""
    assert " 0 failures" in run_judge("random_programs.py", ranks, "--programs", "3000", seconds=5400)
