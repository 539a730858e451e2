"""Collectives that go over the CPU, where NCCL cannot be had: three real processes, and a whole program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from fake_machine import SOURCE, TIMEOUT_S

from running import PROGRAMS, TOLERANCE, WEIGHTS, largest_relative_difference, run_plain

# A run on CPU processes whose collectives are staged, as those of two ranks on one GPU are.
STAGED = """\
import sys
from functools import partial
from samestep.devices.selection import DeviceSelection
from samestep.launch.local import prepare, run_ranks
from samestep.launch.script import ScriptTarget
selection = DeviceSelection("cpu", (0, 1, 2), gloo=True)
prepare(selection)
from samestep.session import run_rank
outcome = run_ranks(partial(run_rank, target=ScriptTarget(sys.argv[1], None, tuple(sys.argv[2:]))), selection)
sys.exit(outcome.code)
"""
CHECKS = """\
import torch
from samestep import world
from samestep.groups import Staged
here = world.current()
assert type(here.groups["cpu"].script) is Staged
ours = torch.full((3,), float(here.rank + 1), dtype=torch.float64)
assert here.all_reduce_(ours) is ours and ours.tolist() == [6.0] * 3
assert here.all_gather(torch.full((here.rank, 2), here.rank), 0, [0, 1, 2]).tolist() == [[1, 1], [2, 2], [2, 2]]
assert here.broadcast_(torch.tensor([here.rank]), source=2).tolist() == [2]
work = here.start_bucket_sum(bucket := torch.ones(5))
here.finish_sum(work)
assert bucket.tolist() == [3.0] * 5
leaf = torch.ones(2, requires_grad=True)
here.finish_sum(here.start_bucket_sum(leaf.detach()))
try:
    here.groups["xpu"]
except KeyError:
    print("ok")
"""
FIRST_ASKED_FOR = """\
from samestep.devices.selection import DeviceSelection
from samestep import groups
import torch
made = []
groups._nccl = lambda rank, size, store, purpose: made.append(purpose) or purpose
store = torch.distributed.HashStore()
ours = groups.make_groups(0, 1, DeviceSelection("cuda", (0,), ("GPU-x",)), store)
assert list(ours) == ["cpu"] and not made
assert ours["cuda"] is ours["cuda"] and made == ["script", "buckets"]
print("ok")
"""


def ranks(folder: Path, source: str, *words: str, program: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a script, or a program, on three ranks whose collectives are staged."""
    (folder / "driver.py").write_text(STAGED)
    (folder / "checks.py").write_text(source)
    return subprocess.run(
        [sys.executable, "driver.py", str(program or "checks.py"), *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def test_each_collective_by_way_of_the_cpu(tmp_path: Path) -> None:
    ran = ranks(tmp_path, CHECKS)
    assert (ran.returncode, ran.stdout) == (0, "ok\n"), ran.stderr


def test_groups_of_an_accelerator_are_made_when_they_are_first_asked_for(tmp_path: Path) -> None:
    ran = ranks(tmp_path, FIRST_ASKED_FOR)
    assert (ran.returncode, ran.stdout) == (0, "ok\n"), ran.stderr


def test_a_program_gets_the_numbers_of_one_device(tmp_path: Path) -> None:
    program = PROGRAMS / "classifier.py"
    (tmp_path / "plain").mkdir()
    truth = run_plain(program, tmp_path / "plain")
    ran = ranks(tmp_path, "", WEIGHTS, program=program)
    assert (ran.returncode, ran.stdout) == (0, truth.stdout), ran.stderr
    weights = torch.load(tmp_path / WEIGHTS, weights_only=True)
    assert largest_relative_difference(truth.weights, weights) <= TOLERANCE
