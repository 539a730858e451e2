"""Small training programs, none of which knows of Samestep: N ranks must leave what one process leaves.

By default each runs on one number of ranks, started by a process that has torch imported; `-m conformance` runs the
real commands on 2, 3 and 4 ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from programs_table import DRAWN, TOLERANCES, ranks_by_default
from running import (
    PROGRAMS,
    TOLERANCE,
    Result,
    assert_nothing_differs,
    compare,
    environment,
    run_plain,
    run_samestep,
)
from warm import WarmStart

NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py"))
#: A minute is enough on a quiet machine, even for 4 ranks on 2 cores.
TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmStart]:
    with WarmStart(environment()) as start:
        yield start


@pytest.mark.parametrize("name", NAMES)
def test_same_as_one_process(
    name: str, warm: WarmStart, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    program = PROGRAMS / f"{name}.py"
    plain, split = tmp_path / "plain", tmp_path / "split"
    plain.mkdir()
    split.mkdir()
    truth = run_plain(program, plain, timeout_s=TIMEOUT_S, start=warm)
    options = ["--exact-random"] if name in DRAWN else []
    ranks = ranks_by_default(name)
    result = run_samestep(program, ranks, split, timeout_s=TIMEOUT_S, options=options, start=warm)
    _compare(name, truth, result, record_property)


@pytest.mark.conformance
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", NAMES)
def test_same_by_the_real_commands(
    name: str,
    ranks: int,
    plain: Callable[[Path], Result],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    program = PROGRAMS / f"{name}.py"
    options = ["--exact-random"] if name in DRAWN else []
    _compare(name, plain(program), run_samestep(program, ranks, tmp_path, options=options), record_property)


def _compare(name: str, truth: Result, result: Result, record_property: Callable[[str, object], None]) -> None:
    tolerance = TOLERANCES.get(name, TOLERANCE)
    found = compare(truth, result, tolerance=tolerance)
    record_property("largest_relative_difference", found.difference)
    assert_nothing_differs(found, tolerance)


def test_programs_do_not_know_samestep() -> None:
    knowing = [path.name for path in PROGRAMS.rglob("*.py") if "samestep" in path.read_text().lower()]
    assert not knowing


def test_an_opened_module_is_told_once_on_stderr(warm: WarmStart, tmp_path: Path) -> None:
    result = run_samestep(PROGRAMS / "simclr_module.py", 2, tmp_path, timeout_s=TIMEOUT_S, start=warm)
    told = [line for line in result.stderr.splitlines() if line.startswith("samestep:")]
    assert len(told) == 1, result.stderr
    assert told[0].startswith("samestep: SimCLR is opened: output 0 is a scalar over the batch"), told
