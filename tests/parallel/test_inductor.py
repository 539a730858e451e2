"""`torch.compile` by its default backend, which calls a C++ compiler: one process against several ranks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from running import assert_same, run_plain, run_samestep

PROGRAM = Path(__file__).parent / "inductor_program.py"
#: Compiling takes most of it.
TIMEOUT_S = 600.0


@pytest.mark.conformance
@pytest.mark.skipif(shutil.which("g++") is None, reason="the default backend needs a C++ compiler")
@pytest.mark.parametrize("ranks", [2, 3])
def test_default_backend(ranks: int, tmp_path: Path) -> None:
    places = [tmp_path / "plain", tmp_path / "ranks"]
    for place in places:
        place.mkdir()
    truth = run_plain(PROGRAM, places[0], timeout_s=TIMEOUT_S)
    assert_same(truth, run_samestep(PROGRAM, ranks, places[1], timeout_s=TIMEOUT_S))
