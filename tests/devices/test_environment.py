"""What each rank sees, how many threads it gets and on which CPUs it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import pytest
from fake_machine import SOURCE, Machine, gpu, uuid

from samestep.devices import affinity, environment
from samestep.devices.selection import DeviceSelection
from samestep.devices.spec import resolve


def on(visible: str, places: tuple[int, ...] = ()) -> DeviceSelection:
    tokens = tuple(visible)
    count = len(places) or len(tokens)
    return DeviceSelection("cuda", tuple(range(count)), tokens, places)


@pytest.mark.parametrize(
    ("selection", "seen"),
    [
        (on("a"), ["a"]),
        (on("ab"), ["ab", "ba"]),
        (on("abcd"), ["abcd", "bcda", "cdab", "dabc"]),
        (on("abcd", (1,)), ["abcd"]),
        (on("abcd", (1, 3)), ["abcd", "adcb"]),
        (on("abcd", (3, 1)), ["abcd", "adcb"]),
        (on("abcd", (0, 2, 3)), ["abcd", "cbda", "dbac"]),
        (on("abcd", (2, 0, 3)), ["abcd", "dbac", "cbda"]),
        (on("a", (0, 0)), ["a", "a"]),
        (on("ab", (0, 0, 1)), ["ab", "ab", "ba"]),
    ],
)
def test_chosen_devices_change_places_in_a_circle(selection: DeviceSelection, seen: list[str]) -> None:
    assert ["".join(selection.seen_by(rank)) for rank in range(selection.count)] == seen


@pytest.mark.parametrize("total", [1, 2, 3, 4, 5])
def test_every_rank_has_a_device_of_its_own_at_every_index_the_script_may_use(total: int) -> None:
    tokens = "abcde"[:total]
    for count in range(1, total + 1):
        for places in permutations(range(total), count):
            selection = on(tokens, places)
            seen = [selection.seen_by(rank) for rank in range(count)]
            assert seen[0] == tuple(tokens), "main sees what one process would"
            assert all(sorted(each) == sorted(tokens) for each in seen), "nothing is hidden or doubled"
            for rank, each in enumerate(seen):
                assert each[selection.home] == tokens[places[rank]], "its own is where the script calls its device"
            for place in places:
                assert len({each[place] for each in seen}) == count, "no two ranks share a device of the same index"
            for place in set(range(total)) - set(places):
                assert {each[place] for each in seen} == {tokens[place]}, "what is not chosen stays where it is"


def test_each_rank_sees_its_own_gpu_first(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.have(*[gpu(number) for number in range(4)])
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("MASTER_ADDR", "somewhere")
    selection = resolve("1,3,0", hold=False)
    seen = [environment.rank_environment(selection, rank) for rank in range(3)]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in seen] == [
        ",".join(map(uuid, order)) for order in ((1, 3, 0), (3, 0, 1), (0, 1, 3))
    ]
    assert all(each["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID" for each in seen)
    assert all(each["RANK"] is None and each["MASTER_ADDR"] is None for each in seen)


def test_a_cpu_rank_leaves_the_gpus_alone() -> None:
    changes = environment.rank_environment(DeviceSelection("cpu", (0, 1)), 1)
    assert "CUDA_VISIBLE_DEVICES" not in changes


@pytest.mark.parametrize("kind", ["HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"])
def test_other_makers_have_other_variables(kind: str) -> None:
    selection = DeviceSelection("xpu", (0, 1), ("0", "1"), variable=kind)
    assert environment.rank_environment(selection, 1)[kind] == "1,0"
    assert "CUDA_DEVICE_ORDER" not in environment.rank_environment(selection, 1)


def test_cores_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "usable_cores", lambda: 8)
    assert [environment.threads_per_rank(ranks) for ranks in (1, 2, 3, 8, 9)] == [8, 4, 2, 1, 1]


@pytest.mark.parametrize(
    ("cpus", "threads"),
    [
        ([range(4), range(4, 8)], 4),
        ([range(4), range(4)], 2),
        ([range(4), None], 2),
        ([range(2), range(2, 8)], 2),
        ([None, None], 4),
    ],
)
def test_ranks_near_the_same_cores_divide_those(
    cpus: list[range | None], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "usable_cores", lambda: 8)
    assert environment.threads_per_rank(2, [None if each is None else frozenset(each) for each in cpus]) == threads


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


@pytest.mark.parametrize(
    ("near", "allowed", "kept"),
    [
        (((0, 1), (2, 3)), {0, 1, 2, 3}, ({0, 1}, {2, 3})),
        (((0, 1), (2, 3)), {0, 1, 2}, ({0, 1}, {2})),
        (((0, 1), None), {0, 1, 2, 3}, ({0, 1}, None)),
        (((0, 1), (2, 3)), {0, 1}, (None, None)),
        (((0, 1), ()), {0, 1, 2}, ({0, 1}, None)),
    ],
)
def test_ranks_are_kept_to_the_near_cores_they_may_use(
    near: tuple[tuple[int, ...] | None, ...], allowed: set[int], kept: tuple[set[int] | None, ...]
) -> None:
    assert affinity.keep_to(near, frozenset(allowed)) == kept


def test_near_cores_are_those_of_the_driver(machine: Machine) -> None:
    machine.have(gpu(0, cpus=[0b0011]), gpu(1, cpus=[0b1100]), gpu(2))
    assert resolve("1,0,2", hold=False).near == ((2, 3), (0, 1), None)


def cores(root: Path, online: str, group: str | None = None) -> Path:
    (root / "sys/devices/system/cpu").mkdir(parents=True)
    (root / "sys/devices/system/cpu/online").write_text(online + "\n")
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/job/step\n")
    (root / "sys/fs/cgroup/job/step").mkdir(parents=True)
    if group is not None:
        (root / "sys/fs/cgroup/job/cpuset.cpus.effective").write_text(group + "\n")
    return root


@pytest.mark.parametrize(
    ("online", "group", "plan", "users"),
    [
        ("0-3", None, None, False),
        ("0-7", None, None, True),
        ("0-7", "0-3", None, False),
        ("0-3", None, "OMP_PLACES", True),
        ("0-7", "0-1", None, True),
    ],
)
def test_cores_that_somebody_has_chosen_are_left_alone(
    online: str, group: str | None, plan: str | None, users: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    for name in affinity.USERS_PLANS:
        monkeypatch.delenv(name, raising=False)
    if plan is not None:
        monkeypatch.setenv(plan, "cores")
    root = cores(tmp_path, online, group)
    assert affinity.chosen_by_user(root) is users
    selection = DeviceSelection("cuda", (0, 1), ("a", "b"), near=((0, 1), (2, 3)))
    expected = (None, None) if users else ({0, 1}, {2, 3})
    assert affinity.near_cpus(selection, root) == expected


def test_a_process_is_pinned_and_remembers(tmp_path: Path) -> None:
    program = (
        "import os\n"
        "from samestep.devices.affinity import cpus_before, pin\n"
        "before = os.sched_getaffinity(0)\n"
        "pin(None)\n"
        "assert cpus_before() is None\n"
        "pin(frozenset([min(before)]))\n"
        "assert os.sched_getaffinity(0) == {min(before)} and cpus_before() == before\n"
    )
    subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=60, env={**os.environ, "PYTHONPATH": str(SOURCE)}
    )


def test_reads_the_kernels_way_of_writing_cpus() -> None:
    assert affinity.parse_cpus("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert affinity.parse_cpus("\n") == set()


def test_travels_to_another_process(machine: Machine) -> None:
    import json

    machine.have(gpu(0, cpus=[1]), gpu(1))
    selection = resolve("1,0", hold=False)
    assert DeviceSelection.from_json(json.loads(json.dumps(selection.as_json()))) == selection
