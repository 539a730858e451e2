"""AMD's and Intel's devices, what is missing, and the machine itself: read from made-up /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_machine import torch_package

from samestep.devices import accelerators, amd, inventory, missing
from samestep.devices.machine import describe_machine
from samestep.devices.missing import TorchBuild, findings, missing_driver, torch_build
from samestep.devices.nvml import slice_accessible
from samestep.devices.spec import resolve
from samestep.errors import SamestepError


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def amd_machine(root: Path, count: int) -> Path:
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    write(root, dev__kfd="")
    for number in range(count + 1):  # node 0 is the processor
        (nodes / str(number)).mkdir(parents=True)
        facts = (
            "simd_count 0\n"
            if number == 0
            else (
                f"simd_count 304\nlocation_id {number << 8}\ndomain 0\nunique_id {number}\ngfx_target_version 90402\n"
            )
        )
        (nodes / str(number) / "properties").write_text(facts)
        board = root / f"sys/bus/pci/devices/0000:{number:02x}:00.0"
        board.mkdir(parents=True)
        (board / "mem_info_vram_total").write_text(f"{64 << 30}\n")
        (board / "mem_info_vram_used").write_text(f"{1 << 30}\n")
        (board / "gpu_busy_percent").write_text("3\n")
    return root


def test_amd_gpus_are_read_from_the_kernel(tmp_path: Path) -> None:
    first, second = amd.kernel_gpus(amd_machine(tmp_path, 2))
    assert (first.index, first.pci, first.uuid) == (0, "0000:01:00.0", "GPU-0000000000000001")
    assert (second.memory_total, second.memory_used, second.utilisation) == (64 << 30, 1 << 30, 3)
    assert amd.kernel_gpus(tmp_path / "nowhere") == ()


@pytest.mark.parametrize(
    ("environment", "entries", "said"),
    [
        ({}, ["0=0", "1=1", "2=2", "3=3"], None),
        ({"HIP": "2,0"}, ["2=2", "0=0"], None),
        ({"CUDA": "3"}, ["3=3"], None),
        ({"ROCR": "2,3"}, ["0=2", "1=3"], None),
        ({"ROCR": "2,3", "HIP": "1"}, ["1=3"], None),
        ({"ROCR": "2,3", "HIP": "2,3"}, [], "leaves 2 GPUs, which HIP_VISIBLE_DEVICES counts from 0: unset one"),
        ({"ROCR": "3", "CUDA": "3"}, [], "leaves 1 GPU, which CUDA_VISIBLE_DEVICES counts from 0"),
        ({"HIP": "1", "CUDA": "0"}, ["1=1"], "are both set and differ; ROCm takes HIP_VISIBLE_DEVICES"),
        ({"HIP": "1", "CUDA": "1"}, ["1=1"], None),
        ({"HIP": ""}, [], None),
        ({"HIP": "-1"}, [], None),
        ({"HIP": "0,9,1"}, ["0=0"], "the entry '9' is not there; ROCm ignores it and all behind it"),
        ({"HIP": "GPU-0000000000000003"}, ["2=2"], None),
        ({"ROCR": ""}, [], None),
    ],
)
def test_the_three_variables_of_rocm(
    environment: dict[str, str], entries: list[str], said: str | None, tmp_path: Path
) -> None:
    gpus = amd.kernel_gpus(amd_machine(tmp_path, 4))
    found, told = amd.read_variables({f"{name}_VISIBLE_DEVICES": value for name, value in environment.items()}, gpus)
    assert [f"{at}={gpu.index}" for at, gpu in found] == entries
    assert told == () if said is None else said in told[-1]


def test_amd_gpus_are_chosen_by_hips_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    visible_gpus = amd.visible_gpus
    root = amd_machine(tmp_path, 4)
    monkeypatch.setattr(inventory, "torch_build", lambda: TorchBuild("2.13.0", hip="6.3"))
    monkeypatch.setattr(inventory.amd, "visible_gpus", lambda restriction: visible_gpus(restriction, root))
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "SAMESTEP_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "1,3")
    selection = resolve("1,0", hold=False)
    assert (selection.kind, selection.variable, selection.visible) == ("cuda", "HIP_VISIBLE_DEVICES", ("1", "0"))
    assert selection.identities == ("GPU-0000000000000004", "GPU-0000000000000002")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "3")
    with pytest.raises(SamestepError, match=r"ROCR_VISIBLE_DEVICES leaves 2 GPUs, which HIP_VISIBLE_DEVICES counts"):
        resolve("all", hold=False)


@pytest.mark.parametrize(
    ("mask", "entries", "said"),
    [
        (None, ("0", "1", "2"), 0),
        ("", ("0", "1", "2"), 0),
        ("2,0", ("2", "0"), 0),
        ("0.0,0.1,1", ("0.0", "0.1", "1"), 0),
        ("1,7,x,0", ("1", "0"), 2),
        ("1,1", ("1",), 1),
        ("9", (), 1),
    ],
)
def test_intels_mask(mask: str | None, entries: tuple[str, ...], said: int) -> None:
    found, told = accelerators.read_mask({} if mask is None else {"ZE_AFFINITY_MASK": mask}, 3)
    assert (found, len(told)) == (entries, said)


def test_xpus_are_counted_and_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "torch_build", lambda: TorchBuild("2.13.0+xpu", xpu="20250301"))
    monkeypatch.setattr(accelerators, "_xpu_count", lambda: 3)
    monkeypatch.delenv("ZE_AFFINITY_MASK", raising=False)
    selection = resolve("xpu:2")
    assert (selection.kind, selection.visible, selection.variable) == ("xpu", ("0", "1"), "ZE_AFFINITY_MASK")
    assert selection.seen_by(1) == ("1", "0")
    monkeypatch.setenv("ZE_AFFINITY_MASK", "2,0")
    assert resolve("xpu").visible == ("2", "0")
    with pytest.raises(SamestepError, match="3 XPUs are asked for, and there are 2"):
        resolve("xpu:3")
    monkeypatch.setenv("ZE_AFFINITY_MASK", "8")
    with pytest.raises(SamestepError, match="no XPU was found behind ZE_AFFINITY_MASK='8'"):
        resolve("xpu")


def test_xla_and_mps_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators.importlib.util, "find_spec", lambda name: object())
    assert resolve("xla:4").count == 4
    assert (resolve("xla").kind, resolve("xla").count) == ("xla", 1)
    monkeypatch.setattr(accelerators.sys, "platform", "darwin")
    monkeypatch.setattr(accelerators.platform, "machine", lambda: "arm64")
    assert (resolve("mps").kind, resolve("mps:1").count) == ("mps", 1)


# ---------------------------------------------------------------------- what is missing
def test_the_torch_build_is_read_and_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = torch_package(tmp_path, hip="6.3.4") / "torch" / "__init__.py"
    spec = type("Spec", (), {"origin": str(package)})
    monkeypatch.setattr(missing.importlib.util, "find_spec", lambda name: spec)
    assert torch_build() == TorchBuild("2.13.0", hip="6.3.4")
    assert torch_build().describe() == "2.13.0 for ROCm 6.3.4"
    monkeypatch.setattr(missing.importlib.util, "find_spec", lambda name: None)
    assert torch_build().describe() == "not installed"
    assert not torch_build().is_cpu_build


def board(root: Path, vendor: str, kind: str = "0x030200") -> None:
    folder = root / "sys/bus/pci/devices/0000:3b:00.0"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(vendor + "\n")
    (folder / "class").write_text(kind + "\n")


def test_a_board_without_a_driver_is_named(tmp_path: Path) -> None:
    assert missing_driver(tmp_path) == "no NVIDIA driver"
    board(tmp_path, "0x10de")
    assert "though there is an NVIDIA GPU on the PCI bus (0000:3b:00.0); install the driver" in missing_driver(tmp_path)


def test_an_nvidia_network_card_is_no_gpu(tmp_path: Path) -> None:
    board(tmp_path, "0x10de", "0x020000")
    assert missing_driver(tmp_path) == "no NVIDIA driver"


def test_a_container_without_its_gpus_is_told_how_to_start(tmp_path: Path) -> None:
    write(tmp_path, proc__driver__nvidia__version="NVRM version: 550.54\n")
    assert missing_driver(tmp_path).startswith("the NVIDIA kernel module is loaded, but libnvidia-ml.so.1")
    (tmp_path / ".dockerenv").touch()
    assert "start it with `docker run --gpus all` (it needs the NVIDIA container toolkit)" in missing_driver(tmp_path)
    found = dict(findings(tmp_path))
    assert found["NVIDIA driver"] == "NVRM version: 550.54"
    assert found["container"].startswith("yes; NVIDIA_VISIBLE_DEVICES is not set")


def test_another_users_slice_is_known_by_its_device_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert slice_accessible(0, (7, 0), tmp_path), "nothing is known"
    minors = tmp_path / "proc/driver/nvidia-caps"
    minors.mkdir(parents=True)
    (minors / "mig-minors").write_text("config 1\ngpu0/gi7/access 66\ngpu0/gi7/ci0/access 67\n")
    assert slice_accessible(0, (7, 0), tmp_path), "the system makes no such files"
    (tmp_path / "dev/nvidia-caps").mkdir(parents=True)
    (tmp_path / "dev/nvidia-caps/nvidia-cap67").touch()
    assert slice_accessible(0, (7, 0), tmp_path)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert not slice_accessible(0, (7, 0), tmp_path)
    assert slice_accessible(0, (8, 0), tmp_path)


# ---------------------------------------------------------------------- the machine
def test_the_machine_is_described(tmp_path: Path) -> None:
    for cpu in range(8):
        topology = f"sys__devices__system__cpu__cpu{cpu}__topology__"
        write(tmp_path, **{f"{topology}physical_package_id": str(cpu // 4), f"{topology}core_id": str(cpu // 2 % 2)})
    write(
        tmp_path,
        sys__devices__system__node__node0__cpulist="0-3\n",
        sys__devices__system__node__node0__meminfo="Node 0 MemTotal:       1024 kB\n",
        sys__devices__system__node__node1__cpulist="4-7\n",
        proc__cpuinfo="processor : 0\nmodel name\t: A Processor\n",
    )
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("4096\n")
    machine = describe_machine(tmp_path)
    assert (machine.model, machine.sockets, machine.cores) == ("A Processor", 2, 4)
    assert [(node.number, node.cpus, node.memory) for node in machine.nodes] == [
        (0, (0, 1, 2, 3), 1024 * 1024),
        (1, (4, 5, 6, 7), None),
    ]
    assert machine.memory_limit == 4096
    assert describe_machine(tmp_path / "nothing").sockets is None
