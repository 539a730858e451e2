"""Whatever torch lets a tensor subclass override, besides what its operator database names."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from torch.overrides import get_overridable_functions, resolve_name
from torch.testing._internal.common_methods_invocations import op_db

from conformance.launching_judges import run_judge
from conformance.surface_samples import EXCLUDED, SAMPLES


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.conformance)])
def test_functions_methods_and_properties_that_the_database_does_not_name(ranks: int) -> None:
    """Every other function that a subclass can override."""
    assert '"failures": 0' in run_judge("surface.py", ranks, seconds=900)


def test_nothing_of_the_surface_is_left_out() -> None:
    """Whatever torch lets a subclass override is judged, or excluded by name with a reason."""
    covered: set[Any] = set()
    for op in op_db:
        covered |= {op.op, op.method_variant, op.inplace_variant, op.operator_variant, op.inplace_operator_variant}
        for alias in op.aliases:
            covered |= {alias.op, alias.method_variant, alias.inplace_variant}
    names = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for space, functions in get_overridable_functions().items():
            for function in functions:
                if function not in covered:
                    found = resolve_name(function) or str(function)
                    # Properties say their own name only.
                    names.add(
                        found
                        if found.startswith("torch.")
                        else f"torch.Tensor.{getattr(space, '__name__', space)}.__get__"
                    )
    assert sorted(names - set(SAMPLES) - set(EXCLUDED)) == []
    assert sorted(set(SAMPLES) & set(EXCLUDED)) == []
    assert all(EXCLUDED.values())
