"""CUDA_VISIBLE_DEVICES against PyTorch's own reading of it, and the order in which GPUs are counted."""

from __future__ import annotations

import random

import pytest
import torch
from fake_machine import Machine, gpu, uuid

from samestep.devices.gpus import Gpu
from samestep.devices.inventory import take_inventory
from samestep.devices.spec import resolve
from samestep.devices.visibility import read_visible
from samestep.errors import SamestepError

GPUS = tuple(Gpu(index, "H200", uuid(index), f"0000:0{index}:00.0", 1, 0) for index in range(4))


def by_torch(value: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The GPUs that PyTorch expects CUDA to show on a machine with four."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    listed = torch.cuda._parse_visible_devices()
    if listed and isinstance(listed[0], str):
        return torch.cuda._transform_uuid_to_ordinals(listed, [gpu.uuid for gpu in GPUS])
    for position, number in enumerate(listed):
        if number >= len(GPUS):
            return listed[:position]
    return listed


def by_us(value: str) -> list[int]:
    try:
        return [entry.gpu.index for entry in read_visible(value, GPUS).entries if entry.gpu is not None]
    except SamestepError:  # a repetition, of which CUDA makes no GPU at all
        return []


WRITTEN = [
    *["", "0", "3,2,1,0", "1,1", "0,9,1", "0,-1,1", "-1", "NoDevFiles", "1gpu,2ampere", "+1,2", " 1, 2", "0,,1", ",0"],
    *["GPU-0101", "GPU-0101,GPU-0202", "GPU-0", "GPU-0101,1", "1,GPU-0101", "GPU-0101,GPU-0101", "GPU-77", "GPU-0, 2"],
    *[uuid(3), f"{uuid(3)},{uuid(0)}", f"{uuid(3)},GPU-0303", "1;2", "0x1", "1.5", "a", "1 2", "2,0,2", "0,1,2,3,4"],
]


@pytest.mark.parametrize("value", WRITTEN)
def test_means_what_pytorch_expects(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert by_us(value) == by_torch(value, monkeypatch)


def test_random_lists_mean_what_pytorch_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    pieces = ["0", "1", "2", "3", "7", "-1", "", " 1", "2x", "GPU-0101", uuid(2), "GPU-0", "x", "+3"]
    for _ in range(400):
        value = ",".join(draw.choice(pieces) for _ in range(draw.randint(1, 4)))
        assert by_us(value) == by_torch(value, monkeypatch), value


def hexadecimal(*indices: int) -> str:
    return ",".join(uuid(index).removeprefix("GPU-").replace("-", "") for index in indices)


def test_fastest_first_is_obeyed_and_both_numbers_are_shown(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.have(gpu(0, "T4"), gpu(1, "H200"), gpu(2, "A100"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(machine.library))
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    monkeypatch.setenv("FAKE_CUDA", hexadecimal(1, 2, 0))
    selection = resolve("0,2", hold=False)
    assert selection.visible == (uuid(1), uuid(0))
    assert selection.order == "FASTEST_FIRST"
    assert selection.notes[0] == (
        "CUDA_DEVICE_ORDER=FASTEST_FIRST: 0 is nvidia-smi's 1 (NVIDIA H200), 1 is nvidia-smi's 2 (NVIDIA A100), "
        "2 is nvidia-smi's 0 (NVIDIA T4)"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert resolve("all", hold=False).visible == (uuid(2),)


def test_numbers_are_passed_on_if_cuda_cannot_be_asked(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.have(gpu(0, "T4"), gpu(1, "H200"))
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    selection = resolve("1", hold=False)
    assert (selection.visible, selection.order) == (("1",), "FASTEST_FIRST")
    assert "CUDA could not be asked" in selection.notes[0]


def test_with_nothing_set_gpus_are_counted_as_nvidia_smi_counts_them(machine: Machine) -> None:
    machine.have(gpu(0, "T4"), gpu(1, "H200"))
    found = take_inventory()
    assert [(each.number, each.name) for each in found.gpus] == [(0, "NVIDIA T4"), (1, "NVIDIA H200")]
    assert (found.order, found.said) == ("PCI_BUS_ID", ())
