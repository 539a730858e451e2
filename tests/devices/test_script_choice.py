"""Scripts that choose their devices by themselves: real launcher, real processes, GPUs that are not there."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_machine import HERE, SOURCE, TIMEOUT_S, Machine, gpu, uuid

from samestep.launch.device_choice import DeviceChoice, written
from samestep.launch.device_hooks import at_home

SET = 'import os\nos.environ["CUDA_VISIBLE_DEVICES"] = {}\n'
CUDA = "import torch\n"


@dataclass
class Ran:
    """What a run left: exit code, output, and what each rank saw."""

    code: int
    out: str
    err: str
    ranks: list[dict[str, Any]]

    @property
    def own(self) -> list[int]:
        """The GPU of each rank, by nvidia-smi's number."""
        return [number(each["own"]) for each in self.ranks]


def number(token: str) -> int:
    return next(index for index in range(16) if uuid(index) == token)


@pytest.fixture
def four(elsewhere: Machine) -> Machine:
    elsewhere.have(*[gpu(index) for index in range(4)])
    return elsewhere


def run(machine: Machine, source: str, *words: str, arguments: tuple[str, ...] = (), **more: str) -> Ran:
    """Run a script under `samestep run WORDS`."""
    folder = machine.folder
    (folder / "train.py").write_text(source)
    record = folder / "record"
    record.mkdir(exist_ok=True)
    for left in record.iterdir():
        left.unlink()
    driver = [str(HERE / "cuda_driver.py"), "run", *words, "train.py", *arguments]
    process = machine.start(driver, RECORD=str(record), PYTHONPATH=str(SOURCE), **more)
    out, err = process.communicate(timeout=TIMEOUT_S)
    # Those of a first try that the second has not overwritten are empty.
    ranks = [json.loads(path.read_text()) for path in sorted(record.iterdir()) if path.stat().st_size]
    return Ran(process.returncode, out, err, ranks)


def said(who: str, devices: str) -> str:
    return f"samestep: the script chooses its devices itself: {who}; running on {devices}\n"


def test_without_a_choice_every_gpu_is_used_once(four: Machine) -> None:
    ran = run(four, CUDA + "torch.cuda.current_device()\nimport os\nprint(os.environ.get('CUDA_VISIBLE_DEVICES'))\n")
    assert (ran.code, ran.out, ran.err) == (0, "None\n", "")
    assert ran.own == [0, 1, 2, 3]


# The first is told by the source, the second shows only when the script runs.
@pytest.mark.parametrize(
    ("value", "own"),
    [('",".join(["3", "1"])', [3, 1]), (f'"{uuid(2)}"[:]', [2])],
)
def test_cuda_visible_devices_in_the_script_is_obeyed(value: str, own: list[int], four: Machine) -> None:
    source = SET.format(value) + CUDA + "print(torch.cuda.device_count(), os.environ['CUDA_VISIBLE_DEVICES'])\n"
    ran = run(four, source)
    chosen = eval(value)
    who = f"os.environ['CUDA_VISIBLE_DEVICES'] = {chosen!r} (train.py, line 2)"
    assert (ran.code, ran.out) == (0, f"{len(own)} {chosen}\n")
    assert ran.err == said(who, f"GPU{'s' if len(own) > 1 else ''} " + ", ".join(map(str, own)))
    assert ran.own == own
    assert all(each["ranks"] == len(own) for each in ran.ranks)


@pytest.mark.conformance
def test_it_may_name_more_than_the_user_has_exported(four: Machine) -> None:
    ran = run(four, SET.format('",".join("02")'), CUDA_VISIBLE_DEVICES="1")
    assert (ran.code, ran.own) == (0, [0, 2])


@pytest.mark.conformance
def test_the_same_as_exported_is_no_choice(four: Machine) -> None:
    ran = run(four, SET.format('",".join("12")'), CUDA_VISIBLE_DEVICES="1,2")
    assert (ran.code, ran.err, ran.own) == (0, "", [1, 2])


def test_set_device_is_obeyed_and_the_others_stay_visible(four: Machine) -> None:
    source = CUDA + "torch.cuda.set_device(int('2'))\nprint(torch.cuda.device_count(), torch.cuda.current_device())\n"
    ran = run(four, source)
    assert (ran.code, ran.out) == (0, "4 2\n")
    assert ran.err == said("torch.cuda.set_device(2) (train.py, line 2)", "GPU 2")
    assert ran.own == [2]


def test_what_is_used_anyway_is_no_choice(four: Machine) -> None:
    source = SET.format('",".join("0123")') + CUDA + "torch.cuda.set_device(0)\ntorch.cuda.set_device('cuda:0')\n"
    source += "torch.nn.DataParallel(torch.nn.Linear(1, 1), device_ids=list(range(4)))\n"
    ran = run(four, source + "print(os.environ['CUDA_VISIBLE_DEVICES'])\n")
    assert (ran.code, ran.out, ran.err, ran.own) == (0, "0,1,2,3\n", "", [0, 1, 2, 3])


def test_device_ids_are_obeyed(four: Machine) -> None:
    source = CUDA + "torch.cuda.set_device(1)\nm = torch.nn.DataParallel(torch.nn.Linear(1, 1), device_ids=[1, 3])\n"
    ran = run(four, source.replace("torch.cuda.set_device(1)\n", ""))
    assert ran.code == 0
    assert ran.err == said("device_ids=[1, 3] (train.py, line 2)", "GPUs 1, 3")
    assert [[number(token) for token in each["seen"]] for each in ran.ranks] == [[0, 1, 2, 3], [0, 3, 2, 1]]


@pytest.mark.conformance
def test_one_choice_narrows_another(four: Machine) -> None:
    source = SET.format('",".join("123")') + CUDA
    source += "torch.nn.DataParallel(torch.nn.Linear(1, 1), device_ids=[0, 2])\n"
    source += "torch.cuda.set_device(0)\nprint('done')\n"
    ran = run(four, source)
    assert (ran.code, ran.out, ran.own) == (0, "done\n", [1, 3])
    assert ran.err.count("chooses its devices itself") == 2


def test_the_user_wins_with_a_warning(four: Machine) -> None:
    source = SET.format('",".join("13")') + CUDA
    source += "print(torch.cuda.device_count(), os.environ['CUDA_VISIBLE_DEVICES'])\n"
    source += "torch.nn.DataParallel(torch.nn.Linear(1, 1), device_ids=[0, 3])\ntorch.cuda.set_device(3)\n"
    source += "torch.accelerator.set_device_index(1)\ntorch.accelerator.set_device_index(5)\n"
    ran = run(four, source, "--devices", "2,0")
    assert (ran.code, ran.out) == (0, "2 1,3\n")
    assert ran.err.splitlines() == [
        "samestep: os.environ['CUDA_VISIBLE_DEVICES'] = '1,3' (train.py, line 2) is ignored: this run was started on "
        "GPUs 2, 0",
        "samestep: device_ids=[0, 3] (train.py, line 5) is ignored: this run was started on GPUs 2, 0",
        "samestep: torch.cuda.set_device(3) (train.py, line 6) is taken for index 1: this run was started on GPUs 2, 0",
        "samestep: torch.accelerator.set_device_index(5) (train.py, line 8) is taken for index 1: this run was started "
        "on GPUs 2, 0",
    ]
    assert ran.own == [0, 2], "index 1 on each"


DISTRIBUTED = """
import ctypes, os, sys
import torch.distributed as dist
os.environ["CUDA_VISIBLE_DEVICES"] = ",".join("13")
dist.init_process_group("gloo")
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
seen = [None] * dist.get_world_size()
dist.all_gather_object(seen, (os.environ["CUDA_VISIBLE_DEVICES"], getenv(b"CUDA_VISIBLE_DEVICES").decode()))
if dist.get_rank() == 0:
    print(seen)
dist.destroy_process_group()
"""


def test_the_user_wins_over_a_distributed_script_too(four: Machine) -> None:
    ran = run(four, DISTRIBUTED, "--devices", "2,0")
    assert (ran.code, ran.out) == (0, f"{[('1,3', f'{uuid(2)},{uuid(0)}')] * 2}\n")
    assert ran.err.count("= '1,3' (train.py, line 4) is ignored: this run was started on GPUs 2, 0") == 1


@pytest.mark.parametrize("use", ["torch.cuda.current_device()", "torch.cuda.is_available()"])
def test_after_cuda_was_used_the_variable_has_no_effect_and_that_is_said(use: str, four: Machine) -> None:
    ran = run(four, CUDA + use + "\n" + SET.format("'1'"))
    assert (ran.code, ran.own) == (0, [0, 1, 2, 3])
    assert ran.err == (
        "samestep: os.environ['CUDA_VISIBLE_DEVICES'] = '1' (train.py, line 4) comes after CUDA was used, and has no "
        "effect any more; set it before, or use --devices\n"
    )


@pytest.mark.conformance
def test_hiding_every_gpu_is_a_choice_too(four: Machine) -> None:
    ran = run(four, "print('first')\n" + SET.format("str(-1)") + "print('ran')\n")
    assert (ran.code, ran.out) == (0, "first\nran\n")
    assert "running on 2 CPU processes" in ran.err


@pytest.mark.conformance
def test_a_choice_of_what_is_not_there_is_refused(four: Machine) -> None:
    ran = run(four, SET.format("str(1) + '，3'"))
    assert ran.code == 2
    assert "fullwidth comma" in ran.err
    assert "Traceback" not in ran.err


def test_what_was_printed_before_the_choice_is_printed_once(four: Machine) -> None:
    source = (
        "import os, subprocess, sys\nprint('first')\nprint('warning', file=sys.stderr)\n"
        "subprocess.run(['echo', 'child'])\n" + SET.format('",".join("13")') + "print('second')\n"
    )
    ran = run(four, source)
    assert (ran.code, sorted(ran.out.split()), ran.own) == (0, ["child", "first", "second"], [1, 3])
    assert ran.err.count("warning\n") == 1
    assert "running on GPUs 1, 3" in ran.err


@pytest.mark.conformance
def test_a_choice_that_does_not_come_again_loses_no_output(four: Machine) -> None:
    source = "import os\nfrom samestep.devices import locks\nprint('first')\nif len(locks._held) == 4:\n    "
    ran = run(four, source + SET.format('",".join("13")').splitlines()[1] + "\nprint('end')\n")
    assert (ran.code, ran.out) == (0, "first\nfirst\nend\n")


def test_files_written_before_the_choice_forbid_a_second_try(four: Machine) -> None:
    ran = run(four, "import os\nos.makedirs('runs')\n" + SET.format('",".join("13")') + "print('ran')\n")
    assert (ran.code, ran.out) == (2, "")
    assert "only after it has changed files, so it is not started again; run it with --devices 1,3" in ran.err
    assert "Traceback" not in ran.err
    ran = run(four, "import os\nos.makedirs('runs', exist_ok=True)\nprint('ran')\n", "--devices", "1,3")
    assert (ran.code, ran.own) == (0, [1, 3])


@pytest.mark.conformance
def test_so_does_input_that_was_read(four: Machine) -> None:
    ran = run(four, SET.format('",".join("13")'), HAS_READ="1")
    assert ran.code == 2
    assert "only after it has read its input" in ran.err


def test_two_ranks_on_one_gpu_are_for_tests(four: Machine) -> None:
    ran = run(four, CUDA + "print(torch.cuda.device_count())\n", "--devices", "2,2", "--oversubscribe")
    assert (ran.code, ran.out, ran.own) == (0, "1\n", [2, 2])
    ran = run(four, "", "--devices", "2,2")
    assert (ran.code, ran.ranks) == (2, [])


@pytest.mark.conformance
def test_locks_move_to_the_chosen_gpus(four: Machine) -> None:
    source = SET.format('",".join("13")') + (
        "from samestep.devices import locks\n"
        f"print([locks.holder(each) is None for each in {[uuid(0), uuid(2)]}])\n"
        f"print(sorted(locks._held) == {[uuid(1), uuid(3)]})\n"
    )
    ran = run(four, source)
    assert (ran.code, ran.out) == (0, "[True, True]\nTrue\n")


def test_every_rank_is_told_the_same_about_a_device(elsewhere: Machine) -> None:
    elsewhere.have(gpu(0, "A100"), gpu(1, "H100"), gpu(2, "T4"))
    source = CUDA + "name = torch.cuda.get_device_name\nnames = [*map(name, range(3)), name('cuda:1')]\n"
    source += f"assert names == {[uuid(0), uuid(1), uuid(2), uuid(1)]}, names\nassert name() == name('cuda')\n"
    ran = run(elsewhere, source)
    assert (ran.code, ran.own) == (0, [0, 1, 2])
    assert "not equal" in ran.err


class On:
    """A parameter as far as its place is asked for."""

    def __init__(self, index: int | None) -> None:
        self.is_cuda = index is not None
        self.device = torch.device("cpu") if index is None else torch.device("cuda", index)


@pytest.mark.parametrize(
    ("ids", "place", "refuse", "current"),
    [
        ([1, 3], 1, True, 1),
        ([1, 3], 0, True, None),
        ([0, 1], 1, False, 1),  # the user has chosen others than the script counts on
        ([], None, True, -1),
        ([0, 1], None, True, -1),
    ],
)
def test_data_parallel_runs_on_the_models_gpu(
    ids: list[int], place: int | None, refuse: bool, current: int | None
) -> None:
    now = [-1]

    @contextlib.contextmanager
    def switch(index: int) -> Iterator[None]:
        before, now[0] = now[0], index
        yield
        now[0] = before

    wrapper = SimpleNamespace(module=SimpleNamespace(parameters=lambda: iter([On(place)])), device_ids=ids)
    forward = at_home(lambda self, *inputs: (now[0], *inputs), refuse, switch)
    if current is None:
        with pytest.raises(RuntimeError, match=r"cuda:1 \(device_ids\[0\]\) but found one of them on device: cuda:0"):
            forward(wrapper, 5)
    else:
        assert forward(wrapper, 5) == (current, 5)


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        (DeviceChoice("1,3", None, ""), "1,3"),
        (DeviceChoice(None, (1, 3), ""), "1,3"),
        (DeviceChoice("4,5,6", (0, 2), ""), "4,6"),
        (DeviceChoice("", None, ""), "cpu:2"),
    ],
)
def test_a_choice_is_written_as_devices_takes_it(choice: DeviceChoice, text: str) -> None:
    assert written(choice) == text
