"""Unedited single-process programs of the frameworks on several ranks.

`make test` runs a small one each of Ignite, Lightning and Accelerate; `make test-frameworks` runs all of them, in
virtual environments of their own, and makes the table of docs/frameworks.md from what these tests record.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from frameworks.cases import CASES, DIRECTORY, EXAMPLES, EXAMPLES_DIRECTORY, SMALL, Case
from running import (
    OTHER_KERNELS,
    Result,
    assert_nothing_differs,
    check_program,
    cold_start,
    compare,
    largest_relative_difference,
    run_plain,
    run_samestep,
)

#: Some import for ten seconds, and ranks share the cores.
TIMEOUT_S = 300.0


def test_every_framework_program_is_listed() -> None:
    assert sorted([*SMALL, *CASES]) == sorted(path.stem for path in DIRECTORY.glob("*.py"))


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", sorted(SMALL))
def test_small_program(
    name: str,
    ranks: int,
    plain: Callable[[Path], Result],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    pytest.importorskip(SMALL[name])
    check_program(DIRECTORY / f"{name}.py", ranks, plain, tmp_path, record_property)


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Result]:
    """What a program does as one plain process, run once."""
    done: dict[Path, Result] = {}

    def run(program: Path) -> Result:
        if program not in done:
            directory = tmp_path_factory.mktemp(f"plain-{program.stem}")
            done[program] = run_plain(program, directory, timeout_s=TIMEOUT_S)
        return done[program]

    return run


def _cases(names: Iterable[str], every_ranks: tuple[int, ...]) -> list[object]:
    """Each program on each number of ranks, all of one program by one worker, which runs the plain process once."""
    return [
        pytest.param(name, ranks, id=f"{name}-{ranks}", marks=pytest.mark.xdist_group(name))
        for name in sorted(names)
        for ranks in every_ranks
    ]


def _noise(program: Path, expected: Result, directory: Path) -> float:
    """How far one process is from itself on another processor."""
    there = directory / "other"
    there.mkdir()
    start = functools.partial(cold_start, extra=OTHER_KERNELS)
    return largest_relative_difference(
        expected.weights, run_plain(program, there, timeout_s=TIMEOUT_S, start=start).weights
    )


@pytest.mark.frameworks
@pytest.mark.parametrize(("name", "ranks"), [*_cases(CASES, (2, 3)), *_cases(EXAMPLES, (2,))])
def test_program(
    name: str,
    ranks: int,
    truth: Callable[[Path], Result],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    case = CASES.get(name) or EXAMPLES[name]
    if importlib.util.find_spec(case.module) is None:
        pytest.skip(f"{case.distribution} is not in this environment")
    program = (DIRECTORY if name in CASES else EXAMPLES_DIRECTORY) / f"{name}.py"
    expected = truth(program)
    result = run_samestep(program, ranks, tmp_path, timeout_s=TIMEOUT_S)
    noise = _noise(program, expected, tmp_path) if case.noisy else 0.0
    tolerance = max(case.tolerance, 3 * noise)
    found = compare(expected, result, tolerance=tolerance, loosely=_cleaned(case))
    record: dict[str, object] = {
        "framework": case.distribution,
        "version": importlib.metadata.version(case.distribution),
        "program": name,
        "ranks": ranks,
        "difference": f"{found.difference:.1e}",
        "noise": f"{noise:.1e}" if case.noisy else "",
        "metrics_equal": found.numbers,
        "lines_equal": not found.lines,
        "files_equal": not found.files,
        "split": "nothing was split" not in result.stderr,
    }
    for key, value in record.items():
        record_property(key, value)
    assert_nothing_differs(found, tolerance)
    assert record["split"] is case.split


def _cleaned(case: Case) -> Callable[[str], str]:
    def clean(text: str) -> str:
        for pattern in case.forgive:
            text = re.sub(pattern, "", text, flags=re.MULTILINE)
        return text

    return clean
