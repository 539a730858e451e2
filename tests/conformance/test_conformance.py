"""Judges that no one here wrote: PyTorch's operator database, and random programs, through global tensors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    out = run_judge("random_programs.py", ranks, "--programs", "150", "--first", str(1000 * ranks), seconds=600)
    assert "150 programs, 0 failures" in out


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
