"""What is free, waiting for it, and locks between real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_machine import TIMEOUT_S, Machine, gpu, mig, slice_uuid, uuid

from samestep.cli import split_run
from samestep.devices import free, locks
from samestep.devices.spec import resolve
from samestep.devices.waiting import meant_as_time, wait_limit
from samestep.errors import SamestepError

# Resolves a spec, says so, and stays until a line arrives.
HOLDER = """\
import sys
from samestep.devices.spec import resolve
from samestep.errors import SamestepError
try:
    selection = resolve(sys.argv[1], wait=float(sys.argv[2]) if len(sys.argv) > 2 else None)
except SamestepError as error:
    print(error, flush=True)
    sys.exit(2)
for note in selection.notes:
    print("note:", note, flush=True)
print("has", *selection.indices, flush=True)
sys.stdin.readline()
"""
# The same, but the process that asked goes away at once and leaves a fork of itself, as a rank is.
FORKING = HOLDER.replace("sys.stdin.readline()", "import os\nif os.fork():\n    os._exit(0)\nsys.stdin.readline()")


class Crowd:
    """Processes that hold GPUs."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *words: str, program: str = HOLDER, **more: str) -> subprocess.Popen[str]:
        process = self.machine.start(["-c", program, *words], **more)
        self.processes.append(process)
        return process

    def holds(self, *words: str, program: str = HOLDER, **more: str) -> tuple[subprocess.Popen[str], str]:
        """Start one and wait until it has said what it has; its lines."""
        process = self.start(*words, program=program, **more)
        return process, said(process)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    """What a process says until it has its GPUs, or ends."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("has"):
            break
    return "".join(lines)


def end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    process.wait(TIMEOUT_S)


@pytest.fixture
def crowd(machine: Machine) -> Iterator[Crowd]:
    made = Crowd(machine)
    yield made
    made.close()


def four(machine: Machine, **changed: dict[str, object]) -> None:
    machine.have(*[gpu(number, **changed.get(f"gpu{number}", {})) for number in range(4)])


@pytest.mark.parametrize(
    ("busy", "spec", "chosen"),
    [
        ({"gpu0": {"used": 30}}, "free", (1, 2, 3)),
        ({"gpu0": {"used": 30}}, "free,memory=100GiB", (0, 1, 2, 3)),
        ({"gpu0": {"used": 30}}, "free,memory=120GB", (1, 2, 3)),
        ({"gpu1": {"busy": 80}}, "free:2", (0, 2)),
        ({"gpu1": {"busy": 80}}, "free:4,utilisation=90%", (0, 1, 2, 3)),
        ({"gpu1": {"busy": 8}}, "free:3,utilization=5", (0, 2, 3)),
        ({"gpu0": {"used": 5}, "gpu1": {"used": 3}}, "free:2", (2, 3)),
        ({"gpu0": {"busy": None}}, "free:4", (0, 1, 2, 3)),
    ],
)
def test_free_is_by_memory_and_utilisation(
    busy: dict[str, dict[str, object]], spec: str, chosen: tuple[int, ...], machine: Machine
) -> None:
    four(machine, **busy)
    assert resolve(spec).indices == chosen


def test_each_gpu_that_is_not_free_is_told_with_who_uses_it(machine: Machine) -> None:
    mine = {"pid": os.getpid(), "memory": 30 << 30}
    four(machine, gpu0={"used": 30, "processes": [mine]}, gpu2={"busy": 77}, gpu3={"used": 20, "processes": None})
    with pytest.raises(SamestepError) as caught:
        resolve("free:3")
    text = str(caught.value)
    assert "devices 'free:3': 1 of 4 GPUs is free, and 3 are asked for (0: 30.0 GiB of 140.0 GiB in use by " in text
    assert f"(pid {os.getpid()}, " in text
    assert "; 2: 77 % busy; 3: 20.0 GiB of 140.0 GiB in use); --wait waits for them" in text


def test_slices_are_free_one_by_one(machine: Machine) -> None:
    machine.have(mig(0, 3))
    assert locks.take(slice_uuid(0, 0)) is None
    locks.release([slice_uuid(0, 0)])
    assert resolve("free:2").names == ("0:0", "0:1")


# ---------------------------------------------------------------------- locks
def test_two_runs_do_not_find_the_same_gpu_free(crowd: Crowd) -> None:
    four(crowd.machine)
    first, lines = crowd.holds("free:2")
    assert lines == "has 0 1\n"
    _, lines = crowd.holds("free:2")
    assert lines == "has 2 3\n"
    third, lines = crowd.holds("free:1")
    assert third.wait(TIMEOUT_S) == 2
    assert f"0: held by another samestep run (pid {first.pid}, " in lines
    end(first)
    assert crowd.holds("free:1")[1] == "has 0\n"


def test_many_who_choose_at_the_same_moment_get_different_ones(crowd: Crowd) -> None:
    crowd.machine.have(*[gpu(number) for number in range(8)])
    started = [crowd.start("free:2", "30") for _ in range(4)]
    got = [tuple(map(int, said(process).split()[1:])) for process in started]
    assert sorted(number for pair in got for number in pair) == list(range(8))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_of_a_dead_process_is_none(crowd: Crowd, how: signal.Signals) -> None:
    crowd.machine.have(gpu(0))
    first, lines = crowd.holds("free:1")
    assert lines == "has 0\n"
    first.send_signal(how)
    first.wait(TIMEOUT_S)
    assert list((crowd.machine.folder / "locks").iterdir()), "the file is still there"
    assert crowd.holds("free:1")[1] == "has 0\n"


def test_a_lock_lives_as_long_as_a_process_of_the_run(crowd: Crowd) -> None:
    crowd.machine.have(gpu(0))
    first, lines = crowd.holds("free:1", program=FORKING)
    assert lines == "has 0\n"
    assert first.wait(TIMEOUT_S) == 0
    second, lines = crowd.holds("free:1")
    assert second.wait(TIMEOUT_S) == 2
    assert "held by another samestep run" in lines
    end(first)  # the fork has its stdin
    while locks.holder(uuid(0)) is not None:
        time.sleep(0.02)
    assert crowd.holds("free:1")[1] == "has 0\n"


def test_who_names_a_gpu_gets_it_and_is_told_who_else_has_it(crowd: Crowd) -> None:
    four(crowd.machine)
    first, _ = crowd.holds("free:1")
    _, lines = crowd.holds("0,1")
    assert f"note: GPU 0 is also used by another samestep run (pid {first.pid}, " in lines
    assert "GPU 1" not in lines
    _, lines = crowd.holds("1")
    assert "note: GPU 1 is also used by" in lines
    assert "has 1\n" in lines


def test_what_somebody_has_named_is_not_free(crowd: Crowd) -> None:
    four(crowd.machine)
    named, _ = crowd.holds("0,2")
    second, _ = crowd.holds("2")
    assert crowd.holds("free:2")[1] == "has 1 3\n"
    end(named)
    assert crowd.holds("free:1")[1] == "has 0\n"
    third, lines = crowd.holds("free:1")
    assert third.wait(TIMEOUT_S) == 2
    assert second.poll() is None
    assert "2: held by another samestep run" in lines


def test_what_is_released_is_free_for_others(crowd: Crowd) -> None:
    crowd.machine.have(gpu(0))
    selection = resolve("free:1")
    refused, _ = crowd.holds("free:1")
    assert refused.wait(TIMEOUT_S) == 2
    locks.release(selection.identities)
    assert crowd.holds("free:1")[1] == "has 0\n"


def test_showing_what_would_be_taken_takes_nothing(crowd: Crowd) -> None:
    crowd.machine.have(gpu(0))
    code, out, _ = crowd.machine.samestep("devices", "free:1")
    assert (code, "would use GPU 0: 1 rank" in out) == (0, True)
    assert resolve("free:1", hold=False).indices == (0,)
    assert crowd.holds("free:1")[1] == "has 0\n"
    code, out, _ = crowd.machine.samestep("devices")
    assert "GPU 0 is held by another samestep run (pid " in out


@pytest.mark.skipif(os.getuid() != 0, reason="needs to become another user")
def test_users_share_the_locks_whatever_their_umask(crowd: Crowd, tmp_path: Path) -> None:
    crowd.machine.have(gpu(0), gpu(1))
    shared = Path("/dev/shm") / f"samestep-test-{os.getpid()}"  # tmp_path is closed to others
    program = (
        "from samestep.devices import locks; import os, sys\n"
        "os.umask(0o077); os.setuid(int(sys.argv[1]))\n"
        "print(locks.take(sys.argv[2]), flush=True); sys.stdin.readline()\n"
    )
    extra = {"SAMESTEP_LOCK_DIR": str(shared)}
    try:
        first = crowd.start("1234", "GPU-x", program=program, **extra)
        assert first.stdout is not None and first.stdout.readline() == "None\n"
        second = crowd.start("4321", "GPU-x", program=program, **extra)
        assert second.stdout is not None
        assert f"pid {first.pid}" in second.stdout.readline()
        end(first)
        third = crowd.start("4321", "GPU-x", program=program, **extra)
        assert third.stdout is not None and third.stdout.readline() == "None\n"
        assert shared.stat().st_mode & 0o7777 == 0o1777
    finally:
        crowd.close()
        for path in shared.iterdir():
            path.unlink()
        shared.rmdir()


def test_locks_that_cannot_be_written_make_nothing_free(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.have(gpu(0))
    monkeypatch.setenv("SAMESTEP_LOCK_DIR", str(machine.script / "locks"))  # below a file
    with pytest.raises(SamestepError, match="GPUs cannot be locked, so that another run might take the same ones: "):
        resolve("free:1")
    assert resolve("0").indices == (0,)


# ---------------------------------------------------------------------- waiting
def test_waits_until_gpus_are_free(crowd: Crowd) -> None:
    crowd.machine.have(gpu(0, used=30), gpu(1))
    waiting = crowd.start("free:2", "100")
    assert waiting.stderr is not None
    assert waiting.stderr.readline() == "samestep: waiting for 2 free GPUs (1 is free; 0:00 of 1:40)\n"
    crowd.machine.have(gpu(0), gpu(1))
    assert said(waiting) == "has 0 1\n"


def test_waits_for_another_run_to_end_and_holds_nothing_meanwhile(crowd: Crowd) -> None:
    four(crowd.machine)
    first, _ = crowd.holds("free:3")
    waiting = crowd.start("free:2", "100")
    assert waiting.stderr is not None
    assert "(1 is free" in waiting.stderr.readline()
    deadline = time.monotonic() + TIMEOUT_S
    while True:  # the one that waits may be just trying
        third, lines = crowd.holds("free:1")
        if third.poll() is None and lines == "has 3\n":
            break
        assert time.monotonic() < deadline, lines
    end(first)
    assert said(waiting) in ("has 0 1\n", "has 0 2\n", "has 1 2\n")


def test_gives_up_at_the_limit(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.have(gpu(0, busy=99))
    with pytest.raises(SamestepError, match=r"0 of 1 GPUs are free after 0:00, and 1 is asked for \(0: 99 % busy\)$"):
        resolve("free:1", wait=0.5)
    assert locks._held == {}


def test_a_gpu_lost_to_a_faster_run_is_replaced(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    four(machine)
    taken = locks.take
    monkeypatch.setattr(free.locks, "take", lambda who: "another run" if who == uuid(0) else taken(who))
    assert resolve("free:2").indices == (1, 2)


def test_a_look_at_who_has_a_gpu_does_not_keep_it_from_others(crowd: Crowd) -> None:
    crowd.machine.have(gpu(0))
    looker = crowd.start(
        uuid(0),
        program="import sys, time\n"
        "from samestep.devices import locks\n"
        "locks.take(sys.argv[1]); locks.release(sys.argv[1:])\n"
        "print('has', flush=True)\n"
        "while True: locks.holder(sys.argv[1]); time.sleep(0.0002)\n",
    )
    said(looker)
    for _ in range(30):
        assert locks.take(uuid(0)) is None
        locks.release([uuid(0)])


def test_the_progress_line_is_rewritten_on_a_terminal(machine: Machine) -> None:
    import pty

    machine.have(gpu(0, busy=99))
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [os.sys.executable, "-c", HOLDER, "free:1", "3"],  # type: ignore[attr-defined]
        env=machine.environment(),
        stderr=child,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    os.close(child)
    written = bytearray()

    def drain() -> None:
        try:
            while chunk := os.read(parent, 4096):
                written.extend(chunk)
        except OSError:  # its end
            pass

    reader = threading.Thread(target=drain)
    reader.start()
    process.communicate(timeout=TIMEOUT_S)
    reader.join(TIMEOUT_S)
    os.close(parent)
    text = written.decode()
    assert process.returncode == 2
    assert text.startswith("\r\x1b[Ksamestep: waiting for a free GPU (0 are free; 0:00 of 0:03)\r\x1b[Ksamestep: wait")
    assert text.endswith("\r\x1b[K")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("written", "seconds"),
    [(None, None), ("", float("inf")), ("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), ("1d", 86400)],
)
def test_reads_times(written: str | None, seconds: float | None) -> None:
    assert wait_limit(written) == seconds
    assert not written or meant_as_time(written)


@pytest.mark.parametrize("written", ["soon", "10 m", "-1", "10x", "1:30", "train.py"])
def test_refuses_what_is_no_time(written: str) -> None:
    assert meant_as_time(written) == (written[0] == "1")  # a mistake; the others are the script
    with pytest.raises(SamestepError, match="is not a time; write --wait=90s"):
        wait_limit(written)


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        (["--wait", "10m", "a.py", "--wait", "3"], ["--wait=10m", "--", "a.py", "--wait", "3"]),
        (["--wait", "a.py"], ["--wait=", "--", "a.py"]),
        (["--wait=2h", "-m", "mod"], ["--wait=2h", "-m", "mod"]),
    ],
)
def test_wait_takes_the_next_word_only_if_that_is_a_time(given: list[str], ours: list[str]) -> None:
    assert split_run(given) == ours


def test_only_what_is_free_can_be_waited_for(machine: Machine) -> None:
    four(machine)
    with pytest.raises(SamestepError, match="--wait waits for GPUs to become free; write --devices free"):
        resolve("1,3", wait=10)
