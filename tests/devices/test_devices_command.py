"""`samestep devices` and the refusals of `samestep run`, as processes on machines that are not there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fake_machine import GIB, Machine, gpu, mig, slice_uuid, torch_package, uuid

ME = os.getpid()
LINKED = {  # 0 and 1 joined by NVLink, 2 and 3 over a switch, the pairs over the processors' link
    "pairs": {"0-1": {"level": 40, "peer": 0}, "2-3": {"level": 10, "peer": 0}},
    "level": 50,
    "peer": 3,
}


def joined() -> list[dict[str, object]]:
    other = ["00000000:02:00.0", "00000000:01:00.0"]
    return [
        *[gpu(number, nvlinks=[other[number]] * 4, cpus=[0b0011]) for number in (0, 1)],
        *[gpu(number, cpus=[0b1100]) for number in (2, 3)],
    ]


def test_shows_each_gpu_with_all_that_is_known(elsewhere: Machine) -> None:
    used = {"processes": [{"pid": ME, "memory": 3 * GIB}], "used": 3.5, "busy": 42, "temperature": 61}
    elsewhere.have(gpu(0, **used), gpu(1, "A100", 80, capability=[8, 0], busy=None, temperature=None))
    code, out, err = elsewhere.samestep("devices")
    assert (code, err) == (0, "")
    header, first, second, *below = out.splitlines()
    assert " ".join(header.split()) == "--devices nvidia-smi GPU memory busy temp. cap. PCI address UUID"
    assert first.split() == (f"0 0 NVIDIA H200 3.5 GiB of 140.0 GiB 42 % 61 °C 9.0 0000:01:00.0 {uuid(0)}".split())
    assert second.split() == f"1 1 NVIDIA A100 0.5 GiB of 80.0 GiB 8.0 0000:02:00.0 {uuid(1)}".split()
    assert below[0].startswith("GPU 0 is used by ")
    assert f"(pid {ME}, " in below[0]
    assert below[0].endswith(", 3.0 GiB.")
    assert below[-1] == "Without --devices, samestep run uses all."


def test_shows_what_is_hidden_and_what_cuda_does_without_a_word(elsewhere: Machine) -> None:
    elsewhere.have(gpu(0), gpu(1), gpu(2))
    code, out, _ = elsewhere.samestep("devices", CUDA_VISIBLE_DEVICES="2,0,7,1")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:4]] == [["1", "0"], ["hidden", "1"], ["0", "2"]]
    assert "In CUDA_VISIBLE_DEVICES='2,0,7,1' the entry '7' is not there" in out


def test_shows_what_a_spec_would_take(elsewhere: Machine) -> None:
    elsewhere.have(gpu(0, used=30), gpu(1), gpu(2, "A100", 80))
    code, out, _ = elsewhere.samestep("devices", "2,1")
    assert code == 0
    assert [line.split()[-2:] for line in out.splitlines()[2:4]] == [["rank", "1"], ["rank", "0"]]
    assert "samestep run would use GPUs 2, 1: 2 ranks." in out
    assert "These GPUs are not equal" in out
    code, out, err = elsewhere.samestep("devices", "free:3")
    assert (code, out) == (2, "")
    assert "2 of 3 GPUs are free" in err


def test_shows_slices(elsewhere: Machine) -> None:
    elsewhere.have(mig(0, 2))
    _, out, _ = elsewhere.samestep("devices", "0:1")
    lines = out.splitlines()
    assert lines[2].split()[0] == "0:0"
    assert lines[3].split()[0] == "0:1"
    assert lines[3].split()[-3:] == [slice_uuid(0, 1), "rank", "0"]
    assert "would use MIG slice 0:1: 1 rank." in out


def test_a_broken_gpu_does_not_hide_the_others(elsewhere: Machine) -> None:
    elsewhere.have(gpu(0), gpu(1, errors={"nvmlDeviceGetUUID": 15}), gpu(2, errors={"handle": 15}))
    code, out, err = elsewhere.samestep("devices")
    assert (code, err) == (0, "")
    assert "GPU 1 cannot be used: the driver says: GPU is lost." in out
    assert "GPU 2 cannot be used: the driver says: GPU is lost." in out
    assert elsewhere.samestep("devices", "all")[1].count("rank 0") == 1


def test_as_json(elsewhere: Machine) -> None:
    elsewhere.have(*joined(), **LINKED)
    code, out, err = elsewhere.samestep("devices", "1,0", "--json", "--topology", CUDA_VISIBLE_DEVICES="0,1,3")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert [each["number"] for each in report["gpus"]] == [0, 1, None, 2]
    assert [each["visible"] for each in report["gpus"]] == [True, True, False, True]
    assert [each["ranks"] for each in report["gpus"]] == [[1], [0], [], []]
    assert report["gpus"][0]["cpus"] == [0, 1]
    assert report["gpus"][0]["capability"] == "9.0"
    assert report["selected"] == {"devices": "GPUs 1, 0", "kind": "cuda", "ranks": 2, "notes": []}
    assert report["hidden_by"] == "CUDA_VISIBLE_DEVICES='0,1,3'"
    assert {"gpus": [0, 1], "path": "NUMA node", "nvlinks": 4, "peer": True} in report["topology"]
    assert {"gpus": [0, 3], "path": "system", "nvlinks": 0, "peer": False} in report["topology"]
    assert len(report["topology"]) == 6
    assert report["machine"]["cpus"] >= 1
    assert report["found"]["PyTorch"] == "2.13.0 for CUDA 12.6"


def columns(line: str) -> list[str]:
    return [each.strip() for each in line.split("  ") if each.strip()]


def test_topology_is_a_matrix(elsewhere: Machine) -> None:
    elsewhere.have(*joined(), **LINKED)
    _, out, _ = elsewhere.samestep("devices", "--topology")
    lines = out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.split()[:2] == ["GPU", "0"])
    assert columns(lines[at]) == ["GPU 0", "GPU 1", "GPU 2", "GPU 3", "CPUs"]
    assert [columns(line) for line in lines[at + 1 : at + 5]] == [
        ["GPU 0", "-", "4 NVLinks", "system", "system", "0-1"],
        ["GPU 1", "4 NVLinks", "-", "system", "system", "0-1"],
        ["GPU 2", "system", "system", "-", "PCIe switch", "2-3"],
        ["GPU 3", "system", "system", "PCIe switch", "-", "2-3"],
    ]
    assert lines[at + 5] == "Peer to peer: 0-1, 2-3."
    assert lines[at + 6] == "Not peer to peer: 0-2, 0-3, 1-2, 1-3."


def test_gpus_that_share_a_switch_are_joined_by_all_their_links(elsewhere: Machine) -> None:
    switch = ["00000000:F0:00.0"] * 18
    elsewhere.have(*[gpu(number, nvlinks=switch) for number in range(3)], level=50, peer=0)
    report = json.loads(elsewhere.samestep("devices", "--topology", "--json")[1])
    assert [link["nvlinks"] for link in report["topology"]] == [18] * 3


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"init": 18}, "the NVIDIA driver was updated while it was running: its library and its kernel module are of"),
        ({"init": 9}, "no NVIDIA driver"),
        ({"init": 4}, "this user may not use the NVIDIA driver (permission denied; see the rights of /dev/nvidia*)"),
        ({"init": 999}, "the NVIDIA driver says: Unknown Error"),
        ({"count_error": 15}, "the NVIDIA driver says: GPU is lost"),
        ({}, "the NVIDIA driver lists none"),
    ],
)
def test_says_why_there_is_no_gpu(more: dict[str, int], reason: str, elsewhere: Machine) -> None:
    elsewhere.have(**more)
    code, out, err = elsewhere.samestep("devices")
    assert (code, err) == (0, "")
    assert f"No GPU can be used: {reason}" in out
    assert "Without --devices, samestep run uses cpu:2." in out
    code, _, err = elsewhere.samestep("devices", "0")
    assert code == 2
    assert f"samestep: devices '0': no GPU was found ({reason}" in err


def test_without_a_library_there_is_no_driver(elsewhere: Machine) -> None:
    elsewhere.have(gpu(0))
    _, out, _ = elsewhere.samestep("devices", LD_LIBRARY_PATH="")
    assert "No GPU can be used: " in out
    assert "cpu:N runs N processes on the CPU." in out
    assert out.startswith("CPU: ")


def test_a_cpu_build_of_torch_is_named_with_the_gpus_it_cannot_use(elsewhere: Machine, tmp_path: Path) -> None:
    elsewhere.have(gpu(0))
    elsewhere.torch = torch_package(tmp_path / "torch-cpu")
    _, out, _ = elsewhere.samestep("devices")
    assert "hidden" in out.splitlines()[1]
    assert "No GPU can be used: the installed PyTorch is the CPU build; install a CUDA build" in out


# ---------------------------------------------------------------------- run: refused before anything is started
@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        (["--devices", "1，3"], {}, "'，' is fullwidth comma (U+FF0C); write 1,3"),
        (["--devices=", "2,3"], {}, "it is empty (a blank after '='?)"),
        (["--devices", "1,", "3"], {}, "a number is missing next to a comma (no blank may stand there); write 1"),
        (["--devices", "cuda:1,3"], {}, "'cuda:1' is not a GPU number (write 1 for that GPU)"),
        (["--devices", "3"], {"CUDA_VISIBLE_DEVICES": "2,3"}, "the machine has one with that number, which"),
        (["--gpus", "1,1"], {}, "GPU 1 is named twice"),
        ([], {"CUDA_VISIBLE_DEVICES": "2，3"}, "CUDA_VISIBLE_DEVICES='2，3': '，' is fullwidth comma"),
        ([], {"CUDA_VISIBLE_DEVICES": "1,1"}, "names 1 twice; CUDA then shows no GPU at all; write 1"),
        ([], {"SAMESTEP_DEVICES": "cpu;2"}, "SAMESTEP_DEVICES='cpu;2': 'cpu;2' is not a GPU number"),
        (["--wait=soon"], {}, "is not a time"),
        (["--wait"], {"SAMESTEP_DEVICES": "1"}, "SAMESTEP_DEVICES='1': --wait waits for GPUs to become free"),
        (["--wait", "90"], {}, "--wait waits for GPUs to become free; write --devices free"),
        (["--devices", "1", "--wait", "10m"], {}, "--wait waits for GPUs to become free"),
        (["--devices", "free:9", "--wait=1s"], {}, "9 GPUs are asked for, and there are 4"),
    ],
)
def test_mistakes_are_refused_before_torch_is_imported(
    words: list[str], environment: dict[str, str], said: str, elsewhere: Machine
) -> None:
    elsewhere.have(*[gpu(number) for number in range(4)])
    (elsewhere.folder / "train.py").write_text("raise SystemExit('it was run')\n")
    code, out, err = elsewhere.samestep("run", *words, "train.py", **environment)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert said in err
    assert "torch was imported" not in err
