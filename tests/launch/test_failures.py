"""A rank that fails ends the run: one report, the right exit code, nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from harness import HANG, Workshop, gone, wait_for_files, wait_until

# Each rank says which process it is, then does its part.
PROLOGUE = """\
import os, signal, subprocess, sys, time
rank = int(os.environ["TEST_RANK"])
def say(name, text):
    with open(name + ".part", "w") as file:
        file.write(str(text))
    os.replace(name + ".part", name)
say(f"pid{rank}", os.getpid())
"""
WAIT = "time.sleep(600)\n"


def pids(shop: Workshop, *names: str) -> list[int]:
    return [int(text) for text in wait_for_files(shop.folder, *names)]


def test_a_rank_alone_fails(shop: Workshop) -> None:
    path = shop.write(
        PROLOGUE
        # Rank 1 fails only when main has printed, however slow the machine; what main still held back would be lost.
        + "print('a line', flush=True); say(f'printed{rank}', 1); "
        + "rank and [time.sleep(0.01) for _ in iter(lambda: os.path.exists('printed0'), True)]\n"
        + "def deeper():\n    raise ValueError('only here')\nif rank == 1:\n    deeper()\n"
        + WAIT
    )
    found = shop.run("script.py")
    assert (found.code, found.out) == (1, "a line\n")
    expected = (
        "samestep: rank 1 of 2 failed (exit code 1):\n"
        "Traceback (most recent call last):\n"
        f'  File "{path}", line 12, in <module>\n    deeper()\n'
        f"  File \"{path}\", line 10, in deeper\n    raise ValueError('only here')\n"
        "ValueError: only here\n"
        "samestep: the stdout of rank 1 ended with:\n  a line\n"
    )
    assert found.err == expected
    assert gone(pids(shop, "pid0", "pid1"))


def test_the_log_of_a_failing_rank_is_shown(shop: Workshop) -> None:
    shop.write(PROLOGUE + "print('to stderr', rank, file=sys.stderr)\nif rank == 2:\n    1 / 0\n" + WAIT)
    found = shop.run("script.py", devices="cpu:3")
    assert found.code == 1
    assert found.err.startswith("to stderr 0\nsamestep: rank 2 of 3 failed (exit code 1):\nTraceback")
    assert found.err.endswith("samestep: the stderr of rank 2 ended with:\n  to stderr 2\n")
    assert found.err.count("Traceback") == 1


def test_only_main_fails(shop: Workshop) -> None:
    shop.write(PROLOGUE + "if rank == 0:\n    raise ValueError('main')\n" + WAIT)
    found = shop.run("script.py", devices="cpu:3")
    assert found.code == 1
    assert found.err.startswith("Traceback (most recent call last):\n  File")
    assert found.err.endswith("ValueError: main\n")
    assert "samestep" not in found.err
    assert gone(pids(shop, "pid0", "pid1", "pid2"))


@pytest.mark.parametrize(("call", "code"), [("sys.exit(3)", 3), ("os._exit(4)", 4), ("sys.exit('some text')", 1)])
def test_another_rank_exits(shop: Workshop, call: str, code: int) -> None:
    shop.write(PROLOGUE + f"if rank == 1:\n    {call}\n" + WAIT)
    found = shop.run("script.py")
    assert found.code == code
    assert found.err.startswith(f"samestep: rank 1 of 2 failed (exit code {code})")
    assert ("some text" in found.err) == ("text" in call)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGTERM"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_is_killed(shop: Workshop, name: str, victim: int) -> None:
    shop.write(PROLOGUE + f"if rank == {victim}:\n    os.kill(os.getpid(), signal.{name})\n" + WAIT)
    found = shop.run("script.py")
    code = 128 + signal.Signals[name]
    assert found.code == code
    who = "rank 0 of 2 (main)" if victim == 0 else "rank 1 of 2"
    assert found.err.startswith(f"samestep: {who} was killed by {name} (exit code {code})")
    assert gone(pids(shop, "pid0", "pid1"))


def test_a_lost_peer_is_not_the_news(shop: Workshop) -> None:
    """Main notices at once that rank 1 is gone; what is reported is why rank 1 went."""
    shop.write(
        PROLOGUE
        + "from samestep.errors import PeerLost\n"
        + "if rank == 1:\n    time.sleep(0.2)\n    raise KeyError('the cause')\n"
        + "try:\n    raise PeerLost('rank 1 is gone')\nfinally:\n    say('saved', 1)\n"
    )
    found = shop.run("script.py", devices="cpu:3")
    assert found.code == 1
    assert found.err.startswith("samestep: rank 1 of 3 failed (exit code 1):\n")
    assert "PeerLost" not in found.err
    assert found.err.count("Traceback") == 1
    assert (shop.folder / "saved").exists()


def test_a_lost_peer_is_told_if_there_is_nothing_else(shop: Workshop) -> None:
    shop.write("from samestep.errors import PeerLost\nraise PeerLost('no idea why')\n")
    found = shop.run("script.py")
    assert found.code == 1
    assert found.err.endswith("samestep.errors.PeerLost: no idea why\n")
    assert found.err.count("Traceback") == 1


def test_a_refusal_is_one_line_with_the_scripts_place(shop: Workshop) -> None:
    path = shop.write("from samestep.errors import SamestepError\ndef f():\n    raise SamestepError('not that')\nf()\n")
    found = shop.run("script.py")
    assert (found.code, found.out, found.err) == (2, "", f"samestep: not that ({path}, line 3)\n")


def test_main_ends_well_but_another_rank_fails_later(shop: Workshop) -> None:
    shop.write(PROLOGUE + "if rank == 1:\n    time.sleep(0.5)\n    1 / 0\n")
    found = shop.run("script.py")
    assert found.code == 1
    assert found.err.startswith("samestep: rank 1 of 2 failed (exit code 1):\n")


def test_ranks_that_are_done_wait_for_each_other(shop: Workshop) -> None:
    shop.write(
        PROLOGUE
        + "if rank == 0:\n    sys.exit(0)\n"
        + "while not os.path.exists('pid0'):\n    time.sleep(0.01)\n"
        + "time.sleep(0.5)\nos.kill(int(open('pid0').read()), 0)\nsay('fine', 1)\n"
    )
    assert shop.run("script.py").code == 0
    assert (shop.folder / "fine").exists()


def test_the_scripts_own_processes_end_with_it(shop: Workshop) -> None:
    shop.write(
        PROLOGUE
        + "say(f'child{rank}', subprocess.Popen(['sleep', '600']).pid)\n"
        + "while not os.path.exists('child0'):\n    time.sleep(0.01)\n"
        + "if rank == 1:\n    1 / 0\n"
        + WAIT
    )
    assert shop.run("script.py").code == 1
    assert gone(pids(shop, "child0", "child1"))


def test_a_stubborn_rank_is_killed(shop: Workshop) -> None:
    shop.write(
        PROLOGUE
        + "if rank == 0:\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    say('deaf', 1)\n"
        + "while not os.path.exists('deaf'):\n    time.sleep(0.01)\n"
        + "if rank == 1:\n    1 / 0\n"
        + WAIT
    )
    assert shop.run("script.py").code == 1
    assert gone(pids(shop, "pid0", "pid1"))


SAVES = """
import atexit
say(f"ready{rank}", 1)
try:
    time.sleep(600)
except KeyboardInterrupt:
    time.sleep(0.3)
    say(f"saved{rank}", 1)
    raise
"""


@pytest.mark.parametrize("to_group", [False, True])
def test_an_interrupt_reaches_every_rank_and_lets_them_save(shop: Workshop, to_group: bool) -> None:
    """From `kill -INT`, and as from a terminal (whole process group) as far as that can be had without one."""
    shop.write(PROLOGUE + SAVES)
    process = shop.start("script.py")
    wait_for_files(shop.folder, "ready0", "ready1")
    if to_group:
        for pid in pids(shop, "pid0", "pid1"):
            os.kill(pid, signal.SIGINT)
        wait_for_files(shop.folder, "saved0", "saved1")
    else:
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANG)
    assert process.returncode == -signal.SIGINT  # as python: by the signal itself
    assert out == ""
    assert err.startswith("Traceback (most recent call last):\n")
    assert err.endswith("KeyboardInterrupt\n")
    assert err.count("Traceback") == 1
    wait_for_files(shop.folder, "saved0", "saved1")
    assert gone(pids(shop, "pid0", "pid1"))


def test_an_interrupt_that_the_script_handles_is_no_failure(shop: Workshop) -> None:
    shop.write(PROLOGUE + SAVES.replace("    raise\n", "    print('stopped early')\n"))
    process = shop.start("script.py")
    wait_for_files(shop.folder, "ready0", "ready1")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANG)
    assert (process.returncode, out, err) == (0, "stopped early\n", "")


def test_a_second_interrupt_kills(shop: Workshop) -> None:
    shop.write(PROLOGUE + SAVES.replace("time.sleep(0.3)", "say(f'saving{rank}', 1); time.sleep(600)"))
    process = shop.start("script.py")
    wait_for_files(shop.folder, "ready0", "ready1")
    process.send_signal(signal.SIGINT)
    wait_for_files(shop.folder, "saving0", "saving1")
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=HANG)
    assert process.returncode == -signal.SIGINT
    assert gone(pids(shop, "pid0", "pid1"))


def test_an_interrupt_of_the_whole_group_comes_once(shop: Workshop) -> None:
    """As `timeout -s INT` and IDEs send it: to the launcher and to every rank, but not from a terminal."""
    waits = "import signal\nsaved = signal.signal(signal.SIGINT, lambda *_: say(f'got{rank}-{time.time_ns()}', 1))\n"
    shop.write(PROLOGUE + waits + "say(f'ready{rank}', 1)\nend = time.time() + 2\nwhile time.time() < end: pass\n")
    for _ in range(3):
        process = shop.start("script.py")
        wait_for_files(shop.folder, "ready0", "ready1")
        for pid in (*pids(shop, "pid0", "pid1"), process.pid):
            os.kill(pid, signal.SIGINT)
        process.communicate(timeout=HANG)
        got = [path for path in shop.folder.iterdir() if path.name.startswith("got") and not path.name.endswith("part")]
        assert sorted(path.name[:4] for path in got) == ["got0", "got1"]
        for path in [*got, *(shop.folder / name for name in ("ready0", "ready1", "pid0", "pid1"))]:
            path.unlink()


def test_other_signals_come_as_often_as_they_are_sent(shop: Workshop) -> None:
    shop.write(
        PROLOGUE
        + "got = []\nsignal.signal(signal.SIGUSR1, lambda *_: (got.append(1), say(f'got{rank}-{len(got)}', 1)))\n"
        + "say(f'ready{rank}', 1)\nwhile len(got) < 3: time.sleep(0.01)\n"
    )
    process = shop.start("script.py")
    wait_for_files(shop.folder, "ready0", "ready1")
    for count in (1, 2, 3):
        process.send_signal(signal.SIGUSR1)
        wait_for_files(shop.folder, f"got0-{count}", f"got1-{count}")
    process.communicate(timeout=HANG)
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_launcher_is_asked_to_end(shop: Workshop, number: signal.Signals) -> None:
    shop.write(
        PROLOGUE + "say(f'child{rank}', subprocess.Popen(['sleep', '600']).pid)\nsay(f'ready{rank}', 1)\n" + WAIT
    )
    process = shop.start("script.py")
    wait_for_files(shop.folder, "ready0", "ready1")
    process.send_signal(number)
    out, err = process.communicate(timeout=HANG)
    assert (process.returncode, out, err) == (-number, "", "")
    assert gone(pids(shop, "pid0", "pid1", "child0", "child1"))


def test_a_sigterm_handler_of_the_script_decides(shop: Workshop) -> None:
    shop.write(
        PROLOGUE
        + "def handle(*_):\n    print('saved')\n    sys.exit(7)\n"
        + "signal.signal(signal.SIGTERM, handle)\nsay(f'ready{rank}', 1)\n"
        + WAIT
    )
    process = shop.start("script.py")
    wait_for_files(shop.folder, "ready0", "ready1")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=HANG)
    assert (process.returncode, out, err) == (7, "saved\n", "")


def test_a_killed_launcher_takes_the_ranks_with_it(shop: Workshop) -> None:
    shop.write(PROLOGUE + "say(f'ready{rank}', 1)\n" + WAIT)
    process = shop.start("script.py", devices="cpu:3")
    wait_for_files(shop.folder, "ready0", "ready1", "ready2")
    process.kill()
    process.wait()
    ranks = pids(shop, "pid0", "pid1", "pid2")
    wait_until(lambda: gone(ranks))


def test_an_ignored_signal_stays_ignored(shop: Workshop) -> None:
    """As under `nohup`."""
    shop.write(
        PROLOGUE + "say(f'ready{rank}', 1)\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\nprint('end')\n"
    )
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = shop.start("script.py")
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_for_files(shop.folder, "ready0", "ready1")
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    (shop.folder / "go").write_text("1")
    out, _ = process.communicate(timeout=HANG)
    assert (process.returncode, out) == (0, "end\n")


def test_a_ctrl_c_at_a_terminal(shop: Workshop) -> None:
    """With a real (pseudo) terminal: the signal arrives once, though launcher and ranks all get it."""
    import pty

    shop.write(
        PROLOGUE
        + "count = 0\nsay(f'ready{rank}', 1)\n"
        + "def handle(*_):\n    global count\n    count += 1\n"
        + "signal.signal(signal.SIGINT, handle)\nsay(f'armed{rank}', 1)\n"
        + "end = time.monotonic() + 600\n"
        + "while not count and time.monotonic() < end:\n    time.sleep(0.01)\n"
        + "time.sleep(0.5)\nsay(f'count{rank}', count)\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        run_in_terminal(shop)
    try:
        wait_for_files(shop.folder, "armed0", "armed1")
        os.write(terminal, b"\x03")
        assert wait_for_files(shop.folder, "count0", "count1") == ["1", "1"]
    finally:
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0


def run_in_terminal(shop: Workshop) -> None:
    """Become the launcher (in a forked child)."""
    import sys

    from harness import environment

    try:
        os.chdir(shop.folder)
        command = [sys.executable, str(shop.driver()), "run", "--devices", "cpu:2", "script.py"]
        os.execve(sys.executable, command, environment())
    finally:
        os._exit(99)


def test_the_run_directory_is_private_and_removed(shop: Workshop, tmp_path: Path) -> None:
    shop.write(
        "import os, sys\nif os.environ['TEST_RANK'] == '1':\n"
        "    log = os.readlink('/proc/self/fd/1')\n"
        "    open('where', 'w').write(log + ' ' + oct(os.stat(os.path.dirname(log)).st_mode))\n"
    )
    if not Path("/proc/self/fd/1").exists():
        pytest.skip("needs /proc")
    assert shop.run("script.py").code == 0
    log, mode = (tmp_path / "where").read_text().split()
    assert mode == "0o40700"
    assert not Path(log).parent.exists()


def test_ranks_are_in_the_launchers_process_group(shop: Workshop) -> None:
    """So that stdin works on main and a terminal's Ctrl-C reaches them."""
    shop.write(PROLOGUE + "say(f'group{rank}', os.getpgrp())\n")
    process = shop.start("script.py")
    assert isinstance(process, subprocess.Popen)
    process.communicate(timeout=HANG)
    groups = wait_for_files(shop.folder, "group0", "group1")
    assert groups == [str(os.getpgrp())] * 2
