"""Unedited single-process programs of Ignite, Lightning and Accelerate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from running import PROGRAMS, Result, assert_same, run_samestep

MODULES = {"ignite_program": "ignite", "lightning_program": "lightning", "accelerate_program": "accelerate"}


def test_every_framework_program_is_listed() -> None:
    assert sorted(MODULES) == sorted(path.stem for path in (PROGRAMS / "frameworks").glob("*.py"))


@pytest.mark.frameworks
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", sorted(MODULES))
def test_same_as_one_process(
    name: str,
    ranks: int,
    plain: Callable[[Path], Result],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    pytest.importorskip(MODULES[name])
    program = PROGRAMS / "frameworks" / f"{name}.py"
    result = run_samestep(program, ranks, tmp_path)
    record_property("largest_relative_difference", assert_same(plain(program), result))
