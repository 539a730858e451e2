"""Programs whose models draw random numbers: with `--exact-random`, N ranks must leave what one process leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from running import PROGRAMS, Result, assert_same, run_samestep

NAMES = sorted(path.stem for path in (PROGRAMS / "random").glob("*.py"))
#: Weights of N devices against those of one, relative. Nearer than for other programs: nothing but rounding differs.
TOLERANCE = 1e-6
#: Batch norm enlarges rounding, and so do softmax and layer norm on top of each other.
ENLARGED = {"images": 1e-5, "transformer": 3e-6}
TIMEOUT_S = 240.0


def _cases() -> list[object]:
    cases: list[object] = [pytest.param(name, ranks, id=f"{name}-{ranks}") for name in NAMES for ranks in (2, 3)]
    return cases + [pytest.param(name, 4, id=f"{name}-4", marks=pytest.mark.conformance) for name in NAMES]


@pytest.mark.parametrize(("name", "ranks"), _cases())
def test_same_as_one_process(
    name: str,
    ranks: int,
    plain: Callable[[Path], Result],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    program = PROGRAMS / "random" / f"{name}.py"
    got = run_samestep(program, ranks, tmp_path, timeout_s=TIMEOUT_S, options=("--exact-random",))
    difference = assert_same(plain(program), got)
    record_property("largest_relative_difference", difference)
    assert difference <= ENLARGED.get(name, TOLERANCE)


def test_without_the_option_dropout_differs(plain: Callable[[Path], Result], tmp_path: Path) -> None:
    """Else the programs would prove nothing."""
    program = PROGRAMS / "random" / "dropout.py"
    got = run_samestep(program, 2, tmp_path, timeout_s=TIMEOUT_S)
    assert got.code == 0 and got.stdout != plain(program).stdout


@pytest.mark.parametrize("options", [("--batchnorm", "locally"), ("--batchnorm",)])
def test_a_wrong_kind_of_batch_norm_is_refused(options: tuple[str, ...], tmp_path: Path) -> None:
    got = run_samestep(PROGRAMS / "random" / "dropout.py", 2, tmp_path, options=options)
    assert got.code == 2 and not got.stdout and "Traceback" not in got.stderr
    assert "batchnorm" in got.stderr and len(got.stderr.splitlines()) == 1
