"""What a spec means in an environment: the devices, or the error, and why. Asked through the real `nvidia-ml-py`."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from fake_machine import GIB, Machine, gpu, mig, slice_uuid, uuid

from samestep.devices import inventory, nvml
from samestep.devices.missing import TorchBuild
from samestep.devices.selection import DeviceSelection
from samestep.devices.spec import resolve
from samestep.errors import SamestepError

MACHINES = {
    "none": [],
    "one": [gpu(0)],
    "four": [gpu(number) for number in range(4)],
    "eight": [gpu(number) for number in range(8)],
    "sixteen": [gpu(number) for number in range(16)],
    "mixed": [gpu(0, "A100", 80), gpu(1, "V100", 32), gpu(2, "A100", 80), gpu(3, "A100", 40)],
    "mig": [mig(0, 3), mig(1, 2)],
    "beside": [gpu(0), mig(1, 2), gpu(2)],
    "undivided": [gpu(0, slices=[]), gpu(1)],
    "lost": [gpu(0), gpu(1, errors={"nvmlDeviceGetMemoryInfo": 15}), gpu(2)],
    "kept": [gpu(0), gpu(1, errors={"handle": 4}), gpu(2)],
}
CVD = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Case:
    """On `machine` with `environment`, `spec` means `devices` (GPU numbers of nvidia-smi, or UUIDs), or is refused.

    `said` must be in the error, or in what the user is told. `why` is the rule.
    """

    why: str
    machine: str
    spec: str | list[int | str] | None
    devices: list[int | str] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    said: str | None = None


def taken(why: str, machine: str, spec: object, devices: list[int | str], said: str | None = None, **env: str) -> Case:
    return Case(why, machine, spec, devices, env, said)  # type: ignore[arg-type]


def refused(why: str, machine: str, spec: object, said: str, **env: str) -> Case:
    return Case(why, machine, spec, None, env, said)  # type: ignore[arg-type]


CASES = [
    # ------------------------------------------------------------ the grammar, nothing hidden
    taken("nothing said: every GPU", "four", None, [0, 1, 2, 3]),
    taken("all", "sixteen", "all", list(range(16))),
    taken("one number", "four", "2", [2]),
    taken("the order is the user's", "four", "3,1", [3, 1]),
    taken("a range", "eight", "2-5", [2, 3, 4, 5]),
    taken("an open range", "eight", "5-", [5, 6, 7]),
    taken("ranges and numbers", "eight", "6-,0-1,3", [6, 7, 0, 1, 3]),
    taken("a list from code", "four", [1, 3], [1, 3]),
    taken("words from code", "four", ["0", "2-3"], [0, 2, 3]),
    taken("a whole UUID", "four", uuid(2), [2]),
    taken("the beginning of a UUID", "four", "GPU-0202", [2]),
    taken("UUIDs and numbers", "four", "GPU-0303,0", [3, 0]),
    taken("a PCI address", "four", "0000:03:00.0", [2]),
    taken("a short PCI address", "four", "03:00.0", [2]),
    taken("the driver's long form", "four", "00000000:04:00.0,1", [3, 1]),
    refused("a number that is not there", "four", "4", "GPU 4 is not there; there are 0 (NVIDIA H200)"),
    refused("several that are not there", "four", "2-5", "GPUs 4, 5 are not there"),
    refused("an open range behind the last", "four", "4-", "GPU 4 is not there"),
    refused("a repeated number", "four", "1,1", "GPU 1 is named twice; one rank per GPU: write 1"),
    refused("repeated under two names", "four", "1,GPU-0101", "GPU 1 is named twice"),
    refused("repeated by a range", "four", "0-2,1", "write 0,1,2"),
    refused("the beginning of two UUIDs", "four", "GPU-0", "is the beginning of 4 UUIDs"),
    refused("a UUID of another machine", "four", "GPU-77", "there is no device GPU-77; there are GPU-0000"),
    refused(
        "a PCI address without a GPU", "four", "7f:00.0", "there is no device 0000:7f:00.0; there are 0000:01:00.0"
    ),
    refused("no GPU", "none", "all", "no GPU was found (the NVIDIA driver lists none); cpu:2 runs on two CPU"),
    refused("no GPU by number", "none", "0", "no GPU was found"),
    refused("an empty list from code", "four", [], "names no device"),
    # ------------------------------------------------------------ MIG
    taken(
        "only slices are there: one rank each",
        "mig",
        "all",
        [slice_uuid(0, n) for n in range(3)] + [slice_uuid(1, n) for n in range(2)],
    ),
    taken("slices by number", "mig", "1:0,0:2", [slice_uuid(1, 0), slice_uuid(0, 2)]),
    taken("a slice by the beginning of its UUID", "mig", "MIG-0001", [slice_uuid(0, 1)]),
    taken("a slice by its older name", "mig", f"MIG-{uuid(0)}/8/0", [slice_uuid(0, 1)]),
    taken(
        "whole GPUs where there are both", "beside", "all", [0, 2], "GPU 1 is left out: it is divided into MIG slices"
    ),
    refused(
        "a divided GPU by number", "beside", "1", "divided into MIG slices; write which: 1:0 (NVIDIA A100 MIG 1g.10gb)"
    ),
    refused("MIG mode without a slice", "undivided", "0", "it has none that this user may open"),
    taken("MIG mode without a slice is no GPU", "undivided", "all", [1], "in MIG mode without a slice"),
    refused("a slice and a GPU", "beside", "0,1:0", "GPU 0 and a MIG slice cannot be used in one run"),
    refused("a slice that is not there", "beside", "1:5", "GPU 1 has no MIG slice 5; it has 1:0"),
    refused("a slice of a whole GPU", "beside", "0:0", "GPU 0 has no MIG slice 0; it has none"),
    refused("a slice twice", "mig", f"0:1,{slice_uuid(0, 1)}", "MIG slice 0:1 is named twice"),
    # ------------------------------------------------------------ trouble with one GPU
    taken(
        "a GPU that fails is left out of all", "lost", "all", [0, 2], "GPU 1 is left out: the driver says: GPU is lost"
    ),
    refused(
        "a GPU that fails, by number", "lost", "1", "GPU 1 is there but cannot be used: the driver says: GPU is lost"
    ),
    taken("a GPU that is kept from this process leaves a hole", "kept", "all", [0, 2]),
    refused("… and is not there", "kept", "0-2", "GPU 1 is not there"),
    taken(
        "models are named if they differ",
        "mixed",
        "0,1",
        [0, 1],
        "not equal, and each gets the same share, so all wait for the slowest: 0 is NVIDIA A100",
    ),
    taken("memory is named if it differs", "mixed", "2,3", [2, 3], "3 is NVIDIA A100 with 40.0 GiB"),
    taken("… and only then", "mixed", "0,2", [0, 2]),
    # ------------------------------------------------------------ CUDA_VISIBLE_DEVICES
    taken("it restricts", "four", "all", [2, 0], CUDA_VISIBLE_DEVICES="2,0"),
    taken("it renumbers", "four", "1", [0], CUDA_VISIBLE_DEVICES="2,0"),
    taken("blanks before numbers", "four", "all", [3, 1], CUDA_VISIBLE_DEVICES="3, 1"),
    taken("a plus sign", "four", "all", [1], CUDA_VISIBLE_DEVICES="+1"),
    taken("UUIDs", "four", "all", [3, 1], CUDA_VISIBLE_DEVICES=f"{uuid(3)},GPU-0101"),
    taken(
        "what is not there cuts the list",
        "four",
        "all",
        [1],
        "the entry '9' is not there: the machine has 4 GPUs, numbered from 0; CUDA ignores it and all behind it (2)",
        CUDA_VISIBLE_DEVICES="1,9,2",
    ),
    taken(
        "-1 cuts the list",
        "four",
        "all",
        [0, 1],
        "the entry '-1' ends the list; CUDA ignores it and all behind it (3)",
        CUDA_VISIBLE_DEVICES="0,1,-1,3",
    ),
    taken(
        "an empty entry cuts the list", "four", "all", [0], "the entry '' is not a number", CUDA_VISIBLE_DEVICES="0,,3"
    ),
    taken(
        "a UUID behind a number cuts the list",
        "four",
        "all",
        [1],
        "is a UUID in a list that begins with a number",
        CUDA_VISIBLE_DEVICES="1,GPU-0303",
    ),
    taken(
        "a number behind a UUID cuts the list",
        "four",
        "all",
        [3],
        "begins otherwise than the first entry",
        CUDA_VISIBLE_DEVICES="GPU-0303,1",
    ),
    taken(
        "a blank behind a comma cuts a list of UUIDs",
        "four",
        "all",
        [3],
        "begins otherwise",
        CUDA_VISIBLE_DEVICES="GPU-0303, GPU-0101",
    ),
    taken(
        "an unknown UUID cuts the list",
        "four",
        "all",
        [3],
        "is the UUID of no GPU here",
        CUDA_VISIBLE_DEVICES="GPU-0303,GPU-77,GPU-0101",
    ),
    taken(
        "an ambiguous UUID cuts the list",
        "four",
        "all",
        [3],
        "is the beginning of 4 UUIDs",
        CUDA_VISIBLE_DEVICES="GPU-0303,GPU-0",
    ),
    taken(
        "digits before other characters count",
        "four",
        "all",
        [1, 2],
        "CUDA reads the entry '1gpu' of CUDA_VISIBLE_DEVICES as 1",
        CUDA_VISIBLE_DEVICES="1gpu,2",
    ),
    taken("semicolons end a number", "four", "all", [1], "reads the entry '1;3'", CUDA_VISIBLE_DEVICES="1;3"),
    refused(
        "empty hides every GPU",
        "four",
        "all",
        "CUDA_VISIBLE_DEVICES='' hides every GPU (it is empty; a blank after '='?)",
        CUDA_VISIBLE_DEVICES="",
    ),
    refused("-1 hides every GPU", "four", "0", "CUDA_VISIBLE_DEVICES='-1' hides every GPU", CUDA_VISIBLE_DEVICES="-1"),
    refused(
        "NoDevFiles hides every GPU",
        "four",
        "all",
        "is what a scheduler writes for no GPU",
        CUDA_VISIBLE_DEVICES="NoDevFiles",
    ),
    refused(
        "a number that is not there, first", "four", "all", "the entry '7' is not there", CUDA_VISIBLE_DEVICES="7,0"
    ),
    refused(
        "a device is no entry",
        "four",
        "all",
        "the entry 'cuda:1' is not a number (write 1)",
        CUDA_VISIBLE_DEVICES="cuda:1,3",
    ),
    refused("quotes inside", "four", "all", "is not a number", CUDA_VISIBLE_DEVICES='"0,1"'),
    refused(
        "a repeated number hides every GPU",
        "four",
        "all",
        "names 2 twice; CUDA then shows no GPU at all; write 2,1",
        CUDA_VISIBLE_DEVICES="2,1,2",
    ),
    refused("a repeated UUID", "four", "all", "names GPU-0101 twice", CUDA_VISIBLE_DEVICES="GPU-0101,GPU-0101"),
    refused(
        "one GPU under two UUIDs' beginnings",
        "four",
        "all",
        "twice; CUDA then shows no GPU",
        CUDA_VISIBLE_DEVICES=f"GPU-0101,{uuid(1)}",
    ),
    refused(
        "a full-width comma",
        "four",
        "all",
        "'，' is fullwidth comma (U+FF0C); CUDA stops there; write 2,3",
        CUDA_VISIBLE_DEVICES="2，3",
    ),
    refused(
        "full-width digits",
        "four",
        "all",
        "fullwidth digit two (U+FF12); CUDA stops there; write 2",
        CUDA_VISIBLE_DEVICES="２",
    ),
    refused(
        "there, but hidden",
        "four",
        "3",
        "(the machine has one with that number, which CUDA_VISIBLE_DEVICES='2,3' hides: unset it",
        CUDA_VISIBLE_DEVICES="2,3",
    ),
    refused(
        "not there at all",
        "four",
        "7",
        "GPU 7 is not there; there are 0 (NVIDIA H200), 1 (NVIDIA H200), as CUDA_V",
        CUDA_VISIBLE_DEVICES="2,3",
    ),
    refused(
        "a hidden UUID",
        "four",
        "GPU-0101",
        "GPU-0101 is there, but CUDA_VISIBLE_DEVICES='2,3' hides it",
        CUDA_VISIBLE_DEVICES="2,3",
    ),
    refused(
        "a hidden PCI address",
        "four",
        "01:00.0",
        "is there, but CUDA_VISIBLE_DEVICES='2' hides it",
        CUDA_VISIBLE_DEVICES="2",
    ),
    taken("a visible UUID keeps its name", "four", "GPU-0303", [3], CUDA_VISIBLE_DEVICES="2,3"),
    taken("a slice in it", "mig", "all", [slice_uuid(0, 1)], CUDA_VISIBLE_DEVICES=slice_uuid(0, 1)),
    taken(
        "two slices: a rank each",
        "mig",
        "all",
        [slice_uuid(0, 1), slice_uuid(1, 0)],
        "one process sees only one of the MIG slices",
        CUDA_VISIBLE_DEVICES=f"{slice_uuid(0, 1)},{slice_uuid(1, 0)}",
    ),
    taken("a slice by its older name", "mig", "all", [slice_uuid(0, 2)], CUDA_VISIBLE_DEVICES=f"MIG-{uuid(0)}/9/0"),
    refused(
        "a slice of another machine", "mig", "all", "is the UUID of no MIG slice here", CUDA_VISIBLE_DEVICES="MIG-77"
    ),
    taken(
        "a divided GPU by number is its first slice",
        "beside",
        "all",
        [slice_uuid(1, 0)],
        "CUDA shows the first of them",
        CUDA_VISIBLE_DEVICES="1",
    ),
    taken(
        "… and hides the GPUs beside it",
        "beside",
        "all",
        [slice_uuid(1, 0)],
        "and no other GPU beside it",
        CUDA_VISIBLE_DEVICES="0,1",
    ),
    taken(
        "an undivided GPU in MIG mode is left out",
        "undivided",
        "all",
        [1],
        "has no slice that can be used; CUDA leaves it out",
        CUDA_VISIBLE_DEVICES="0,1",
    ),
    taken("a GPU kept from this process does not count", "kept", "all", [2], CUDA_VISIBLE_DEVICES="1"),
    # ------------------------------------------------------------ CUDA_DEVICE_ORDER, SAMESTEP_DEVICES
    taken(
        "mixed models: we count as nvidia-smi, and say so",
        "mixed",
        "all",
        [1],
        "CUDA by itself would put the fastest GPU first",
        CUDA_VISIBLE_DEVICES="1",
    ),
    taken("PCI_BUS_ID: no word", "mixed", "all", [1], CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="PCI_BUS_ID"),
    taken("the variable is the default", "four", None, [1, 3], SAMESTEP_DEVICES="1,3"),
    taken("the command line wins", "four", "0", [0], SAMESTEP_DEVICES="1,3"),
    taken("an empty variable is none", "four", None, [0, 1, 2, 3], SAMESTEP_DEVICES=""),
    refused(
        "its mistakes are named as its own",
        "four",
        None,
        "SAMESTEP_DEVICES='7': GPU 7 is not there",
        SAMESTEP_DEVICES="7",
    ),
    taken("both variables", "four", None, [3], SAMESTEP_DEVICES="1", CUDA_VISIBLE_DEVICES="2,3"),
    # ------------------------------------------------------------ free
    taken("all that are free", "four", "free", [0, 1, 2, 3]),
    taken("as many as asked for", "four", "free:2", [0, 1]),
    taken("those of one model, if they are enough", "mixed", "free:2", [0, 2]),
    taken("with memory", "mixed", "free,memory=60GiB", [0, 2], None),
    taken("only what is visible", "four", "free:1", [2], CUDA_VISIBLE_DEVICES="2,3"),
    refused("more than there are", "four", "free:5", "5 GPUs are asked for, and there are 4"),
    refused(
        "more than are free",
        "mixed",
        "free:3,memory=60GiB",
        "2 of 4 GPUs are free, and 3 are asked for (1: 31.5 GiB of 32.0 GiB unused; 3: 39.5 GiB",
    ),
]


def said_by(selection: DeviceSelection) -> str:
    return "\n".join(selection.notes)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.machine}-{case.why}".replace(" ", "_"))
def test_case(case: Case, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.have(*MACHINES[case.machine])
    for name, value in case.environment.items():
        monkeypatch.setenv(name, value)
    if case.devices is None:
        assert case.said is not None
        with pytest.raises(SamestepError) as caught:
            resolve(case.spec, hold=False)
        assert case.said in str(caught.value)
        return
    selection = resolve(case.spec, hold=False)
    expected = tuple(uuid(each) if isinstance(each, int) else each for each in case.devices)
    assert (selection.kind, selection.count, selection.visible) == ("cuda", len(expected), expected)
    assert selection.identities == expected
    if case.said is None:
        assert selection.notes == ()
    else:
        assert case.said in said_by(selection)


def test_the_table_is_as_long_as_promised() -> None:
    assert len(CASES) >= 60
    assert len({(case.machine, str(case.spec), str(case.environment)) for case in CASES}) == len(CASES)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("", "it is empty (a blank after '='?)"),
        ("  ", "it is empty"),
        ("1，3", "'，' is fullwidth comma (U+FF0C); write 1,3"),
        ("1、3", "ideographic comma (U+3001); write 1,3"),
        ("0–3", "en dash (U+2013); write 0-3"),
        ("cpu：2", "fullwidth colon (U+FF1A); write cpu:2"),
        ("１,3", "fullwidth digit one (U+FF11); write 1,3"),
        ("1, 3", "there is a blank in it; write 1,3"),
        (" 1", "there is a blank in it; write 1"),
        ("1 3", "there is a blank in it; write 1,3"),
        ("1,", "a number is missing next to a comma (no blank may stand there); write 1"),
        (",", "a number is missing next to a comma (no blank may stand there); devices are written"),
        ("1,,3", "write 1,3"),
        ("3-1", "the range '3-1' runs backwards; write 1-3"),
        ("0-99999", "longer than any machine has GPUs"),
        ("-1", "GPU numbers start at 0"),
        ("cpu:0", "write cpu:1 for one"),
        ("cpu:", "'' is not a number of processes"),
        ("cpu:-1", "'-1' is not a number of processes"),
        ("cpu:two", "'two' is not a number of processes; write cpu:2 for two CPU processes"),
        ("cpu:99999", "99999 processes are too many"),
        ("cpu,0", "'cpu' is not a GPU number"),
        ("CPU:2", "write cpu:2, alone and in lower case"),
        ("ALL", "write all, alone and in lower case"),
        ("all,1", "write all, alone and in lower case"),
        ("gpu", "write all for every GPU"),
        ("cuda:1,3", "'cuda:1' is not a GPU number (write 1 for that GPU)"),
        ("gpu-0101", "UUIDs begin with GPU- in capitals"),
        ("GPU-xyz", "'GPU-xyz' is not a GPU number"),
        ("1;3", "(write 1,3)"),
        ("1.3", "(write 1,3)"),
        ("train.py", "is that the script? --devices needs a value before it"),
        ("1\n", "there is a blank in it"),
        ("free:0", "0 GPUs cannot run anything; write free:1 for one"),
        ("free:", "'' is not a number of GPUs; write free:2 for two GPUs"),
        ("free,1", "'1' is no condition of free; write memory=20GiB or utilisation=10%"),
        ("1,free", "'free' is not a GPU number (write free in lower case, and no number beside it)"),
        ("Free:2", "write free:2 in lower case"),
        ("free,memory=20", "'20' is not an amount of memory; write it with its unit: memory=20GiB"),
        ("free,memory=", "'' is not an amount of memory"),
        ("free,memory=1GiB,memory=2GiB", "memory= is given twice"),
        ("free,utilization=101", "write a number of per cent from 0 to 100"),
        ("xpu:0", "0 devices cannot run anything"),
        ("mps:2", "a Mac has one GPU; write mps"),
        ("mps", "mps is the GPU of a Mac with Apple silicon; this is Linux"),
        ("xpu", "the installed PyTorch has no XPU support (it is 2.13.0+cpu, the CPU build); install its XPU build"),
        ("xla:2", "XLA devices need the package torch_xla, which is not installed"),
    ],
)
def test_refuses(spec: str, said: str, machine: Machine) -> None:
    machine.have(*MACHINES["four"])
    with pytest.raises(SamestepError) as caught:
        resolve(spec)
    assert said in str(caught.value)
    assert repr(spec) in str(caught.value)


def test_processes_need_no_gpu(machine: Machine) -> None:
    machine.have()
    assert resolve("cpu") == DeviceSelection("cpu", (0,), chosen_by="user")
    assert resolve("cpu:3").indices == (0, 1, 2)


def test_without_a_gpu_two_processes_are_used_and_that_is_said(machine: Machine) -> None:
    machine.have()
    selection = resolve(None)
    assert (selection.kind, selection.count, selection.chosen_by) == ("cpu", 2, "default")
    assert selection.notes == ("no GPU found (the NVIDIA driver lists none); using cpu:2",)


@pytest.mark.parametrize("visible", ["", "-1", "9", "NoDevFiles"])
def test_hidden_gpus_are_no_reason_to_fail(visible: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.have(gpu(0))
    monkeypatch.setenv(CVD, visible)
    selection = resolve(None)
    assert selection.kind == "cpu"
    assert f"no GPU found (CUDA_VISIBLE_DEVICES={visible!r} hides every GPU" in said_by(selection)


def test_a_number_alone_may_mean_two_things(machine: Machine) -> None:
    machine.have(gpu(0), gpu(1))
    with pytest.raises(SamestepError, match=r"is that GPU number 1, or 1 devices\? Write devices=\[1\]"):
        resolve(1)  # type: ignore[arg-type]


def test_a_torch_without_cuda_has_no_use_for_gpus(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.have(gpu(0))
    monkeypatch.setattr(inventory, "torch_build", lambda: TorchBuild("2.13.0+cpu"))
    assert "the installed PyTorch is the CPU build; install a CUDA build" in said_by(resolve(None))


def test_oversubscription_names_a_gpu_twice(machine: Machine) -> None:
    machine.have(gpu(0), gpu(1))
    selection = resolve("1,1", hold=False, oversubscribe=True)
    assert (selection.count, selection.visible, selection.places) == (2, (uuid(1),), (0, 0))
    assert selection.gloo, "NCCL refuses two ranks on one GPU"
    assert [selection.seen_by(rank) for rank in range(2)] == [(uuid(1),)] * 2


@pytest.mark.parametrize(
    ("spec", "visible", "shown"),
    [
        (None, None, None),
        ("all", None, None),
        ("0-3", None, None),
        ("3,1", None, "3,1"),
        ("1", "2,0", "0"),
        ("all", "2,0", "2,0"),
        ("1", f"GPU-0101,{uuid(3)}", uuid(3)),
    ],
)
def test_the_script_reads_what_it_would_read_had_the_user_said_so(
    spec: str | None, visible: str | None, shown: str | None, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.have(*MACHINES["four"])
    if visible is not None:
        monkeypatch.setenv(CVD, visible)
    assert resolve(spec, hold=False).shown == shown


def test_slices_cannot_be_joined_by_nccl(machine: Machine) -> None:
    machine.have(*MACHINES["mig"])
    selection = resolve("0:0,1:1", hold=False)
    assert (selection.one_each, selection.gloo) == (True, True)
    assert [selection.seen_by(rank) for rank in range(2)] == [(slice_uuid(0, 0),), (slice_uuid(1, 1),)]
    assert selection.describe() == "MIG slices 0:0, 1:1"


def test_another_users_slice_is_refused_and_no_part_of_all(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.have(*MACHINES["mig"])
    monkeypatch.setattr(nvml, "slice_accessible", lambda minor, instances: (minor, instances) != (0, (8, 0)))
    for spec in ("0:1", slice_uuid(0, 1)):
        with pytest.raises(SamestepError, match=f"{slice_uuid(0, 1)} may not be opened by this user: it is another's"):
            resolve(spec, hold=False)
    assert slice_uuid(0, 1) not in resolve("all", hold=False).visible
    monkeypatch.setenv(CVD, f"{slice_uuid(0, 0)},{slice_uuid(0, 1)}")
    selection = resolve("all", hold=False)
    assert selection.visible == (slice_uuid(0, 0),)
    assert "is a MIG slice that this user may not open; CUDA ignores it" in said_by(selection)


def test_memory_is_what_the_driver_says(machine: Machine) -> None:
    machine.have(gpu(0, gib=24, used=3))
    found = inventory.take_inventory().gpus[0].gpu
    assert found is not None
    assert (found.memory_total, found.memory_free) == (24 * GIB, 21 * GIB)


def test_describes_itself() -> None:
    assert DeviceSelection("cpu", (0,)).describe() == "1 CPU process"
    assert DeviceSelection("cpu", (0, 1)).describe() == "2 CPU processes"
    assert DeviceSelection("cuda", (1, 3), ("1", "3")).describe() == "GPUs 1, 3"
    assert DeviceSelection("xla", (0, 1)).describe() == "2 XLA devices"
