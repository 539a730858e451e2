"""A judge that no one here wrote: PyTorch's operator database, through global tensors."""

from __future__ import annotations

import pytest

from conformance.launching_judges import run_judge


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_sample_of_the_operator_database(ranks: int) -> None:
    """Two samples of every second operator on 2 ranks, one of each of the others on 3."""
    out = run_judge("operators.py", ranks, "--samples", str(4 - ranks), "--part", f"{ranks % 2}/2", seconds=900)
    assert '"failures": 0' in out


@pytest.mark.conformance
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_whole_operator_database(ranks: int) -> None:
    """Up to ten samples of every operator."""
    assert '"failures": 0' in run_judge("operators.py", ranks, "--samples", "10", seconds=5400)
