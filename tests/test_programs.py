"""Small training programs, none of which knows of Samestep: N ranks must leave what one process leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from running import PROGRAMS, Result, assert_same, run_samestep

NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py"))
#: At 4 ranks by default: a last batch of one row, batches of fewer rows than ranks, and a gather in every step.
ALSO_AT_FOUR = {"classifier", "contrastive", "tiny_batches"}


def _cases() -> list[object]:
    cases: list[object] = [pytest.param(name, ranks, id=f"{name}-{ranks}") for name in NAMES for ranks in (2, 3)]
    for name in NAMES:
        marks = () if name in ALSO_AT_FOUR else (pytest.mark.conformance,)
        cases.append(pytest.param(name, 4, id=f"{name}-4", marks=marks))
    return cases


@pytest.mark.parametrize(("name", "ranks"), _cases())
def test_same_as_one_process(
    name: str,
    ranks: int,
    plain: Callable[[Path], Result],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    program = PROGRAMS / f"{name}.py"
    result = run_samestep(program, ranks, tmp_path)
    record_property("largest_relative_difference", assert_same(plain(program), result))


def test_programs_do_not_know_samestep() -> None:
    knowing = [path.name for path in PROGRAMS.rglob("*.py") if "samestep" in path.read_text().lower()]
    assert not knowing
