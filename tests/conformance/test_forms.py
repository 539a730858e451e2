"""The other forms of the operators in the database: methods, in-place and Python operators, aliases, out=, aten."""

from __future__ import annotations

import pytest

from conformance.launching_judges import run_judge


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_sample_of_the_other_forms_of_operators(ranks: int) -> None:
    """A tenth of the operators, others at each number of ranks."""
    assert '"failures": 0' in run_judge("forms.py", ranks, "--samples", "1", "--part", f"{ranks}/10", seconds=900)


@pytest.mark.conformance
@pytest.mark.parametrize("ranks", [2, 3])
def test_all_forms_of_operators(ranks: int) -> None:
    """Three samples of every form of every operator."""
    assert '"failures": 0' in run_judge("forms.py", ranks, "--samples", "3", seconds=5400)
