"""The grammar of `--devices`: what is understood, and what each mistake is told."""

from __future__ import annotations

import sys

import pytest

from samestep.devices import environment, inventory
from samestep.devices.inventory import Gpu
from samestep.devices.spec import DeviceSelection, resolve
from samestep.errors import SamestepError


def gpu(index: int) -> Gpu:
    return Gpu(index, f"Model {index}", f"GPU-{index}{index}aa-bb", f"0000:0{index}:00.0", 8 << 30, 1 << 30)


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SAMESTEP_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(inventory, "torch_is_cpu_build", lambda: False)


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with four GPUs."""
    monkeypatch.setattr(inventory, "driver_gpus", lambda: (tuple(map(gpu, range(4))), None))


@pytest.fixture
def none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU."""
    monkeypatch.setattr(inventory, "driver_gpus", lambda: ((), "no NVIDIA driver"))


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize(
    ("spec", "kind", "indices"),
    [
        (None, "cuda", (0, 1, 2, 3)),
        ("all", "cuda", (0, 1, 2, 3)),
        ("2", "cuda", (2,)),
        ("3,1", "cuda", (3, 1)),
        ("0-2", "cuda", (0, 1, 2)),
        ("3,0-1", "cuda", (3, 0, 1)),
        ("cpu", "cpu", (0,)),
        ("cpu:3", "cpu", (0, 1, 2)),
    ],
)
def test_understands(spec: str | None, kind: str, indices: tuple[int, ...]) -> None:
    selection = resolve(spec)
    assert (selection.kind, selection.indices, selection.count) == (kind, indices, len(indices))
    assert selection.visible == (tuple(map(str, indices)) if kind == "cuda" else ())
    assert selection.note is None


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("", "it is empty"),
        ("  ", "it is empty"),
        ("1，3", "'，' is fullwidth comma (U+FF0C); write 1,3"),
        ("1、3", "ideographic comma (U+3001); write 1,3"),
        ("0–3", "en dash (U+2013); write 0-3"),
        ("cpu：2", "fullwidth colon (U+FF1A); write cpu:2"),
        ("１,3", "fullwidth digit one (U+FF11); write 1,3"),
        ("1, 3", "there is a blank in it; write 1,3"),
        (" 1", "there is a blank in it; write 1"),
        ("1 3", "there is a blank in it; write 1,3"),
        ("1,", "a number is missing next to a comma; write 1"),
        (",", "a number is missing next to a comma; devices are written"),
        ("1,,3", "a number is missing next to a comma; write 1,3"),
        ("1,1", "GPU 1 is named twice"),
        ("0-2,1", "GPU 1 is named twice; one rank per GPU: write 0,1,2"),
        ("3-1", "the range '3-1' runs backwards; write 1-3"),
        ("0-99999", "longer than any machine has GPUs"),
        ("4", "GPU 4 is not there; there are 0 (Model 0), 1 (Model 1), 2 (Model 2), 3 (Model 3)"),
        ("2-5", "GPUs 4, 5 are not there"),
        ("-1", "GPU numbers start at 0"),
        ("cpu:0", "write cpu:1 for one"),
        ("cpu:", "'' is not a number of processes"),
        ("cpu:-1", "'-1' is not a number of processes"),
        ("cpu:two", "'two' is not a number of processes"),
        ("cpu:99999", "99999 processes are too many"),
        ("cpu,0", "'cpu' is not a GPU number"),
        ("CPU:2", "write cpu:2, alone and in lower case"),
        ("ALL", "write all, alone and in lower case"),
        ("all,1", "write all, alone and in lower case"),
        ("gpu", "write all for every GPU"),
        ("cuda:1", "write 1 for that GPU"),
        ("free", "cannot be asked for yet"),
        ("GPU-00aa", "cannot be asked for yet"),
        ("1;3", "'1;3' is not a GPU number"),
        ("train.py", "'train.py' is not a GPU number"),
        ("1\n", "there is a blank in it"),
    ],
)
def test_refuses(spec: str, said: str) -> None:
    with pytest.raises(SamestepError) as caught:
        resolve(spec)
    assert said in str(caught.value)
    assert repr(spec) in str(caught.value)


@pytest.mark.usefixtures("none")
def test_without_a_gpu_uses_two_processes_and_says_so() -> None:
    assert resolve(None) == DeviceSelection("cpu", (0, 1), (), "no GPU found (no NVIDIA driver); using cpu:2")


@pytest.mark.usefixtures("none")
@pytest.mark.parametrize("spec", ["all", "0", "0-1"])
def test_without_a_gpu_refuses_to_find_one(spec: str) -> None:
    with pytest.raises(SamestepError, match=r"no GPU was found \(no NVIDIA driver\); cpu:2 runs"):
        resolve(spec)


@pytest.mark.usefixtures("four")
def test_the_variable_is_the_default_and_is_named_in_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMESTEP_DEVICES", "1,3")
    assert resolve(None).indices == (1, 3)
    assert resolve("0").indices == (0,)
    monkeypatch.setenv("SAMESTEP_DEVICES", "7")
    with pytest.raises(SamestepError, match="SAMESTEP_DEVICES='7': GPU 7 is not there"):
        resolve(None)
    monkeypatch.setenv("SAMESTEP_DEVICES", "")
    assert resolve(None).count == 4


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize(
    ("visible", "spec", "tokens"),
    [
        ("2,0", "all", ("2", "0")),
        ("2,0", "1", ("0",)),
        ("GPU-33,1", "0,1", ("GPU-33", "1")),
        ("1,9,2", "all", ("1",)),
        ("3, 1", "all", ("3", "1")),
    ],
)
def test_cuda_visible_devices_restricts_and_renumbers(
    monkeypatch: pytest.MonkeyPatch, visible: str, spec: str, tokens: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert resolve(spec).visible == tokens


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize("visible", ["", "-1", "9", "NoDevFiles"])
def test_cuda_visible_devices_may_hide_every_gpu(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    selection = resolve(None)
    assert selection.kind == "cpu"
    assert selection.note is not None
    assert f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU" in selection.note


@pytest.mark.usefixtures("four")
def test_errors_under_cuda_visible_devices_say_whose_numbers_they_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    with pytest.raises(SamestepError, match=r"GPU 3 is not there; there are 0 \(Model 2\), 1 \(Model 3\), as CUDA_V"):
        resolve("3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,2")
    with pytest.raises(SamestepError, match="names 2 twice"):
        resolve("all")


@pytest.mark.usefixtures("four")
def test_a_torch_without_cuda_has_no_use_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "torch_is_cpu_build", lambda: True)
    note = resolve(None).note
    assert note is not None
    assert "CPU build" in note


@pytest.mark.usefixtures("four")
def test_each_rank_sees_its_own_gpu_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("MASTER_ADDR", "somewhere")
    selection = resolve("1,3,0")
    seen = [environment.rank_environment(selection, rank) for rank in range(3)]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in seen] == ["1,3,0", "3,0,1", "0,1,3"]
    assert all(each["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID" for each in seen)
    assert all(each["RANK"] is None and each["MASTER_ADDR"] is None for each in seen)


def test_a_cpu_rank_leaves_the_gpus_alone() -> None:
    changes = environment.rank_environment(DeviceSelection("cpu", (0, 1)), 1)
    assert "CUDA_VISIBLE_DEVICES" not in changes


def test_describes_itself() -> None:
    assert DeviceSelection("cpu", (0,)).describe() == "1 CPU process"
    assert DeviceSelection("cpu", (0, 1)).describe() == "2 CPU processes"
    assert DeviceSelection("cuda", (1, 3), ("1", "3")).describe() == "GPUs 1, 3"


def test_cores_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "usable_cores", lambda: 8)
    assert [environment.threads_per_rank(ranks) for ranks in (1, 2, 3, 8, 9)] == [8, 4, 2, 1, 1]


def test_the_users_threads_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "usable_cores", lambda: 8)
    monkeypatch.setattr(environment, "_written", {})
    for name in environment.THREAD_VARIABLES:
        monkeypatch.setenv(name, "0")  # so that the fixture restores what the calls below set
        monkeypatch.delenv(name)
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    assert environment.set_thread_environment(2) == 4
    assert environment.set_thread_environment(4) == 2
    values = [environment.os.environ[name] for name in environment.THREAD_VARIABLES]
    assert values == ["2", "3", "2"]
    monkeypatch.setattr(environment, "_written", {})
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert environment.set_thread_environment(2) is None
    assert environment.os.environ["OMP_NUM_THREADS"] == "5"


def test_the_driver_is_asked_through_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    class Error(Exception):
        pass

    class LibraryNotFound(Error):
        pass

    LibraryNotFound.__name__ = "NVMLError_LibraryNotFound"

    class Fake:
        NVMLError = Error
        missing = False
        open = 0

        def nvmlInit(self) -> None:
            if self.missing:
                raise LibraryNotFound
            self.open += 1

        def nvmlShutdown(self) -> None:
            self.open -= 1

        def nvmlDeviceGetCount(self) -> int:
            return 2

        def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
            return index

        def nvmlDeviceGetName(self, handle: int) -> bytes:
            return b"H200"

        def nvmlDeviceGetUUID(self, handle: int) -> str:
            return f"GPU-{handle}"

        def nvmlDeviceGetPciInfo(self, handle: int) -> object:
            return type("Pci", (), {"busId": b"0000:01:00.0"})

        def nvmlDeviceGetMemoryInfo(self, handle: int) -> object:
            return type("Memory", (), {"total": 100, "used": 7})

    fake = Fake()
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
    gpus, reason = inventory.driver_gpus()
    assert gpus[1] == Gpu(1, "H200", "GPU-1", "0000:01:00.0", 100, 7)
    assert reason is None
    assert fake.open == 0
    fake.missing = True
    assert inventory.driver_gpus() == ((), "no NVIDIA driver")
