"""XLA devices: what a script computes on the CPU by plain Python is what it computes on one and on several of them.

torch_xla wants a torch of its own release, so these run in a virtual environment of their own: `make test-xla`.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from running import TOLERANCE, differences, largest_relative_difference

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch_xla") is None, reason="torch_xla is not installed; make test-xla sets it up"
)
PROGRAMS = Path(__file__).parent / "programs"
HANG = 300.0


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PJRT_", "CPU_NUM", "XLA_"))}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=kept, capture_output=True, text=True, timeout=HANG, check=False
    )


def on_xla(devices: str, name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run("-m", "samestep", "run", "--devices", devices, str(PROGRAMS / name), "xla.pt", "xla", folder=folder)


def assert_numbers_of_the_cpu(devices: str, name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    truth = run(str(PROGRAMS / name), "cpu.pt", "cpu", folder=folder)
    assert truth.returncode == 0, truth.stderr
    found = on_xla(devices, name, folder)
    assert found.returncode == 0, found.stderr
    assert not differences(truth.stdout, found.stdout), found.stdout
    assert truth.stdout
    weights = [torch.load(folder / file, weights_only=True) for file in ("cpu.pt", "xla.pt")]
    for each in weights:
        # torch_xla keeps the variance of the batch here where torch keeps the unbiased one: 1.7e-2 apart on one device.
        each.pop("1.running_var", None)
    assert largest_relative_difference(*weights) <= TOLERANCE
    return found


@pytest.mark.parametrize("devices", ["xla", "xla:2", "xla:3"])
def test_plain_script(devices: str, tmp_path: Path) -> None:
    """103 rows in batches of 16: the last batch has 7, which 2 and 3 devices do not divide."""
    assert_numbers_of_the_cpu(devices, "plain.py", tmp_path)


@pytest.mark.parametrize("devices", ["xla", "xla:2"])
def test_ignite(devices: str, tmp_path: Path) -> None:
    pytest.importorskip("ignite")
    found = assert_numbers_of_the_cpu(devices, "ignite_xla.py", tmp_path)
    assert "nothing was divided" not in found.stderr


@pytest.mark.parametrize(("devices", "count"), [("xla", 1), ("xla:4", 4)])
def test_spawned_script(devices: str, count: int, tmp_path: Path) -> None:
    """Batch norm among the layers: its statistics are those of the whole batch."""
    found = assert_numbers_of_the_cpu(devices, "spawned.py", tmp_path)
    assert f"world 1 devices {count}" in found.stderr


def test_batches_really_lie_on_different_devices(tmp_path: Path) -> None:
    script = tmp_path / "shards.py"
    script.write_text(
        "import torch, torch_xla\n"
        "from torch.utils.data import DataLoader\n"
        "from torch_xla.distributed.spmd import XLAShardedTensor\n"
        "for batch in DataLoader(torch.arange(6.0).view(6, 1), batch_size=6):\n"
        "    batch = batch.to(torch_xla.device())\n"
        "    print([each.data.flatten().tolist() for each in XLAShardedTensor(batch).local_shards])\n"
    )
    found = run("-m", "samestep", "run", "--devices", "xla:3", str(script), folder=tmp_path)
    assert (found.returncode, found.stdout) == (0, "[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]\n"), found.stderr


def test_what_was_not_divided_is_told(tmp_path: Path) -> None:
    script = tmp_path / "whole.py"
    script.write_text("import torch, torch_xla\nprint(torch.ones(4, device=torch_xla.device()).sum().item())\n")
    found = run("-m", "samestep", "run", "--devices", "xla:2", str(script), folder=tmp_path)
    assert (found.returncode, found.stdout) == (0, "4.0\n"), found.stderr
    assert "samestep: nothing was divided" in found.stderr


@pytest.mark.parametrize("devices", ["cpu:2", "xla:2"])
def test_a_world_that_fell_apart_is_refused(devices: str, tmp_path: Path) -> None:
    found = on_xla(devices, "fallen_apart.py", tmp_path)
    assert found.returncode == 2, found.stdout + found.stderr
    assert "each of the 2 processes is rank 0 of a process group of its own" in found.stderr
    assert not found.stdout
