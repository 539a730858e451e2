"""Fixtures shared by all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from running import Result, run_plain


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Result]:
    """The truth: what a program does as one plain process, run once per session."""
    done: dict[Path, Result] = {}

    def run(program: Path) -> Result:
        if program not in done:
            done[program] = run_plain(program, tmp_path_factory.mktemp(f"plain-{program.stem}"))
        return done[program]

    return run


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how near the programs came to one process: the largest difference, and with -v each program's."""
    figures = [
        (value, report.nodeid.partition("[")[2].rstrip("]"))
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == "largest_relative_difference"
    ]
    if not figures:
        return
    terminalreporter.section("final weights against one process")
    for value, case in sorted(figures, reverse=True)[: None if terminalreporter.verbosity > 0 else 3]:
        terminalreporter.write_line(f"{value:.1e} {case}")
