"""Judges that no one here wrote: PyTorch's operator database, and random programs, through global tensors."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from torch.overrides import get_overridable_functions, resolve_name
from torch.testing._internal.common_methods_invocations import op_db

HERE = Path(__file__).parent


def run_judge(program: str, ranks: int, *options: str, seconds: int) -> str:
    """The judge's failures and summary; fails the test if it found any, died or hung."""
    command = [sys.executable, "-m", "samestep", "run", "--devices", f"cpu:{ranks}", str(HERE / program), *options]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_sample_of_the_operator_database(ranks: int) -> None:
    """Two samples of every second operator, other ones at each number of ranks."""
    out = run_judge("operators.py", ranks, "--samples", "2", "--part", f"{ranks % 2}/2", seconds=600)
    assert '"failures": 0' in out


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_random_programs(ranks: int) -> None:
    """Values, gradients and errors of small random programs are those of plain tensors."""
    out = run_judge("random_programs.py", ranks, "--programs", "120", seconds=600)
    assert "120 programs, 0 failures" in out


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_sample_of_the_other_forms_of_operators(ranks: int) -> None:
    """Methods, in-place methods, Python operators, aliases, `out=`, `torch.ops.aten`: a tenth of the operators."""
    assert '"failures": 0' in run_judge("forms.py", ranks, "--samples", "1", "--part", f"{ranks}/10", seconds=600)


@pytest.mark.parametrize("ranks", [2, 3])
def test_functions_methods_and_properties_that_the_database_does_not_name(ranks: int) -> None:
    """Every other function that a subclass can override."""
    assert '"failures": 0' in run_judge("surface.py", ranks, seconds=600)


def test_nothing_of_the_surface_is_left_out() -> None:
    """Whatever torch lets a subclass override is judged, or excluded by name with a reason."""
    sys.path.insert(0, str(HERE))
    from surface_samples import EXCLUDED, SAMPLES

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


@pytest.mark.conformance
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_whole_operator_database(ranks: int) -> None:
    """Up to ten samples of every operator."""
    assert '"failures": 0' in run_judge("operators.py", ranks, "--samples", "10", seconds=5400)


@pytest.mark.conformance
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_many_random_programs(ranks: int) -> None:
    """Three thousand programs."""
    assert " 0 failures" in run_judge("random_programs.py", ranks, "--programs", "3000", seconds=5400)


@pytest.mark.conformance
@pytest.mark.parametrize("ranks", [2, 3])
def test_all_forms_of_operators(ranks: int) -> None:
    """Three samples of every form of every operator."""
    assert '"failures": 0' in run_judge("forms.py", ranks, "--samples", "3", seconds=5400)
