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
