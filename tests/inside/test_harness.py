"""The harness itself: a wrong number, a rank that raises and a rank that dies must all be seen."""

from __future__ import annotations

from pathlib import Path

from inside.launching import checks_in, run_checks

CHECKS = """
import os
import torch
from inside.claims import case, same, true, world
import samestep

def check_right():
    same(samestep.shard(torch.arange(5)).sum(), torch.tensor(10))

def check_wrong_number():
    same(samestep.shard(torch.arange(5)).sum(), torch.tensor(11))

def check_wrong_on_one_rank():
    true(world().rank == 0, "not the first rank")

def check_raises():
    raise ValueError("from a check")

def check_raises_in_a_case():
    with case("label"):
        raise ValueError("from a case")

def check_kills_a_rank():
    if world().rank == 1:
        os._exit(7)
    world().barrier()

def check_after_a_dead_rank():
    same(world().size, 2)
"""


def test_every_way_to_fail_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "checks_sample.py"
    file.write_text(CHECKS)
    outcomes = run_checks(file, 2, tmp_path)
    assert list(outcomes) == checks_in(file)
    assert outcomes["check_right"] == ""
    assert outcomes["check_after_a_dead_rank"] == "", "the launch after a dead rank goes on with the next check"
    assert "rank 0 and 1: value" in outcomes["check_wrong_number"]
    assert outcomes["check_wrong_on_one_rank"] == "rank 1: not the first rank"
    assert "from a check" in outcomes["check_raises"]
    assert "label: raised ValueError: from a case" in outcomes["check_raises_in_a_case"]
    assert "never came to its end" in outcomes["check_kills_a_rank"]
