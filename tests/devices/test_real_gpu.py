"""On a machine with an NVIDIA GPU only: what is said elsewhere with GPUs that are not there, said by real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fake_machine import SOURCE

from samestep.devices import nvml
from samestep.devices.visibility import read_visible
from samestep.errors import SamestepError

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

TRAINING = """\
import torch
from torch import nn
torch.manual_seed(0)
device = torch.device("cuda")
data = torch.utils.data.TensorDataset(torch.randn(103, 8), torch.randint(0, 3, (103,)))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(torch.cuda.device_count(), torch.cuda.get_device_name(0), len(loader))
torch.save({name: value.cpu() for name, value in model.state_dict().items()}, "weights.pt")
"""
# PyTorch's own count comes from the same library as ours, so CUDA itself is asked.
FOUND = """\
import json, torch
facts = torch.cuda.get_device_properties
print(json.dumps([f"GPU-{facts(index).uuid}" for index in range(torch._C._cuda_getDeviceCount())]))
"""


def run(folder: Path, *words: str, **more: str) -> str:
    """What `python WORDS` prints."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "SAMESTEP_LOCK_DIR": str(folder / "locks"), **more}
    ran = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_two_ranks_on_one_gpu_have_the_numbers_of_one(tmp_path: Path) -> None:
    left = []
    for name, launcher in (("plain", ()), ("two", ("-m", "samestep", "run", "--devices", "0,0", "--oversubscribe"))):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.py").write_text(TRAINING)
        environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"} if not launcher else {}
        out = run(folder, *launcher, "train.py", **environment)
        left.append((out, torch.load(folder / "weights.pt", weights_only=True)))
    (truth, expected), (out, got) = left
    assert out == truth
    for name, value in expected.items():
        assert (value - got[name]).abs().max() <= 1e-5 * value.abs().max(), name


def test_the_table_is_what_pytorch_finds(tmp_path: Path) -> None:
    environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    listed = json.loads(run(tmp_path, "-m", "samestep", "devices", "--json", **environment))["gpus"]
    seen = [each for each in listed if each["visible"] and not each["mig"]]
    assert len(seen) == torch.cuda.device_count()
    for each in seen:
        facts = torch.cuda.get_device_properties(each["number"])
        assert facts.name == each["name"]
        assert each["capability"] == f"{facts.major}.{facts.minor}"


@pytest.mark.parametrize(
    "value", ["0", "0,0", "-1", "", "0,99", "99,0", "0x", "+0", "GPU-", "NoDevFiles", " 0", "0,-1"]
)
def test_cuda_reads_the_variable_as_we_do(value: str, tmp_path: Path) -> None:
    gpus, _ = nvml.driver_gpus()
    try:
        ours = [entry.gpu.uuid for entry in read_visible(value, gpus).entries if entry.gpu is not None]
    except SamestepError:
        ours = []
    out = run(tmp_path, "-c", FOUND, CUDA_VISIBLE_DEVICES=value, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert json.loads(out) == ours
