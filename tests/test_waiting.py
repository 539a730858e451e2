"""Ranks that wait for each other for ever, or very long, are found out and named with the script's lines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from samestep.waiting import Standing, laggard, verdict


def at(line: str, count: int = 4, what: str = "all-gather", seconds: float = 40.0) -> Standing:
    return Standing(count, what, seconds, f"train.py:{line}")


@pytest.mark.parametrize(
    "standings",
    [
        [at("1", what="all-gather"), at("2", what="all-reduce")],
        [at("1", count=4), at("2", count=5)],
        [at("1"), at("1"), at("2", count=3)],
    ],
)
def test_ranks_that_wait_for_different_things_are_stuck(standings: list[Standing]) -> None:
    text = verdict(standings, 30.0)
    assert text is not None
    assert all(f"rank {rank} in an {s.what} at {s.line}" in text for rank, s in enumerate(standings))


@pytest.mark.parametrize(
    "standings",
    [
        [at("1"), at("1")],  # the same thing: about to go on
        [at("1"), at("2", what="", seconds=0.0)],  # one computes
        [at("1"), at("2", count=5, seconds=3.0)],  # one has only begun to wait
        [at("1", what="end"), at("1", count=9, what="end")],  # both have come to their end
        [at("1")],
        [],
    ],
)
def test_ranks_that_may_go_on_are_not(standings: list[Standing]) -> None:
    assert verdict(standings, 30.0) is None


def test_a_rank_that_keeps_others_waiting_very_long_is_named() -> None:
    computing = at("9", what="", seconds=0.0)
    text = laggard([at("1", seconds=400.0), computing], 30.0)
    assert text == "rank 0 in an all-gather at train.py:1 has waited 400 s for rank 1 at train.py:9"
    assert laggard([at("1", seconds=200.0), computing], 30.0) is None
    assert laggard([at("1", seconds=400.0), at("1", seconds=400.0)], 30.0) is None


def test_a_rank_that_waits_for_one_that_has_ended_is_stuck() -> None:
    text = verdict([at("1"), at("9", what="end")], 30.0)
    assert text is not None
    assert "rank 0 in an all-gather at train.py:1, rank 1 at the end of the script" in text
    assert laggard([at("1", what="end", seconds=400.0), at("2", what="", seconds=0.0)], 30.0) is None


def run(script: Path, ranks: int, patience: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "samestep", "run", "--devices", f"cpu:{ranks}", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "SAMESTEP_PATIENCE": patience}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


STUCK = """
import samestep, torch
from samestep import world
batch = samestep.shard(torch.arange(8.0))
print("so far")
if samestep.rank() == 1:
    here = world.current()
    here.finish_sum(here.start_bucket_sum(torch.ones(3)))
print(batch.sum().item())
"""

SLOW = """
import samestep, time, torch
batch = samestep.shard(torch.arange(8.0))
if samestep.rank() == 1:
    time.sleep(14)
print(batch.sum().item())
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_run_that_is_stuck_ends_with_the_line_of_every_rank(ranks: int, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(STUCK)
    done = run(script, ranks, "2")
    assert done.returncode == 1
    assert done.stdout == "so far\n"
    assert done.stderr.count("\n") == 1
    for rank in range(ranks):
        what = "all-reduce of gradients at train.py:8" if rank == 1 else "all-reduce at train.py:9"
        assert f"rank {rank} in an {what}" in done.stderr


def test_a_run_that_is_slow_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SLOW)
    done = run(script, 2, "0.4")
    assert (done.returncode, done.stdout) == (0, "28.0\n")
    assert "rank 0 in an all-reduce at train.py:6 has waited" in done.stderr
    assert "for rank 1 at train.py:5" in done.stderr
    assert done.stderr.count("\n") == 1


ENDED = """\
import samestep, torch
ids = samestep.shard(torch.tensor([1, 2, 3, 99]))
table = torch.nn.Embedding(10, 4)
table(ids.clamp(max=9)).sum().backward()  # the first call, at which the ranks agree about errors, too
try:
    table(ids).sum().backward()
    print(table.weight.grad.sum().item())
except IndexError:
    pass
"""


def test_a_rank_that_has_ended_after_an_error_of_its_own_ends_the_run(tmp_path: Path) -> None:
    """The last rank's rows alone raise, and the script passes over that: the others would wait for ever."""
    script = tmp_path / "ended.py"
    script.write_text(ENDED)
    done = run(script, 2, "2")
    assert done.returncode == 1
    assert "ended.py:6, rank 1 at the end of the script. The script has gone another way" in done.stderr
