"""Runs scripts under plain Python and under the launcher, as processes of their own, to compare the two."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

import samestep.errors

SOURCE = Path(samestep.errors.__file__).parent.parent
HANG = 180.0  # only ever reached by a hang

# The launcher without the rest of the product: every rank only runs the target.
BARE = """\
import os
import sys
import types

import samestep.errors

SOURCE = '''
import os
from samestep.launch.script import run_target

def run_rank(context, target, explain, **options):
    os.environ["TEST_RANK"] = str(context.rank)
    run_target(target)
'''
session = types.ModuleType("samestep.session")
exec(compile(SOURCE, samestep.errors.__file__.replace("errors", "session"), "exec"), session.__dict__)
sys.modules["samestep.session"] = session
from samestep.cli import main
main(sys.argv[1:])
"""


# For the truth of a distributed program: see its_own_launch.
LEAVE = """\
import atexit
import sys

def leave():
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()

atexit.register(leave)
"""


@dataclass
class Ended:
    """What a process left: exit code and output."""

    code: int
    out: str
    err: str


@dataclass
class Workshop:
    """A directory to write scripts into and run them from."""

    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def write(self, source: str, name: str = "script.py") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
        return path

    def plain(self, *words: str, stdin: str = "", **environment: str) -> Ended:
        """Run `python WORDS`."""
        return self._finish(self._start([sys.executable, *words], environment), stdin)

    def run(self, *words: str, stdin: str = "", devices: str = "cpu:2") -> Ended:
        """Run `samestep run --devices DEVICES WORDS`."""
        return self._finish(self.start(*words, devices=devices), stdin)

    def samestep(self, *words: str, **environment: str) -> Ended:
        """Run `samestep WORDS`."""
        return self._finish(self._start([sys.executable, str(self.driver()), *words], environment), "")

    def start(self, *words: str, devices: str = "cpu:2") -> subprocess.Popen[str]:
        """Start `samestep run` and return at once."""
        return self._start([sys.executable, str(self.driver()), "run", "--devices", devices, *words])

    def driver(self) -> Path:
        """A program that is `samestep` with the stand-in session."""
        path = self.folder / "driver" / "bare.py"
        if not path.exists():
            path.parent.mkdir()
            path.write_text(BARE, encoding="utf-8")
        return path

    def _start(self, command: list[str], extra: dict[str, str] | None = None) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment(extra),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    @staticmethod
    def _finish(process: subprocess.Popen[str], stdin: str) -> Ended:
        out, err = process.communicate(stdin, timeout=HANG)
        return Ended(process.returncode, out, err)

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                kill_tree(process.pid)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
            process.wait()


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """This process's environment, with the package findable and nothing that decides about devices.

    Nor PYTHONUNBUFFERED: with it, lines that two ranks print at a time get mixed.
    """
    dropped = ("SAMESTEP_", "CUDA_", "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {**kept, "PYTHONPATH": str(SOURCE), **(extra or {})}


def kill_tree(pid: int) -> None:
    """Kill a process and all below it."""
    with contextlib.suppress(psutil.Error):
        top = psutil.Process(pid)
        for process in [*top.children(recursive=True), top]:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that must happen; a hang fails the test."""
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def wait_for_files(folder: Path, *names: str) -> list[str]:
    """Wait until files exist and are not empty; returns their texts."""
    paths = [folder / name for name in names]
    wait_until(lambda: all(path.exists() and path.read_text() for path in paths))
    return [path.read_text() for path in paths]


def gone(pids: list[int]) -> bool:
    """Whether none of the processes runs any more (a zombie that nobody waits for does not run)."""
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                return False
    return True


def workshop(folder: Path) -> Iterator[Workshop]:
    """The body of the fixture."""
    made = Workshop(folder)
    try:
        yield made
    finally:
        made.close()


def torchrun(shop: Workshop, ranks: int, *words: str) -> Ended:
    """The truth of a distributed program that torchrun starts.

    `--no-python`, because torchrun else starts `python -u`, which writes a line and its end apart: ranks' lines mix.
    """
    own = ["--standalone", f"--nproc-per-node={ranks}", "--no-python"]
    return its_own_launch(shop, "-m", "torch.distributed.run", *own, sys.executable, *words)


def its_own_launch(shop: Workshop, *words: str) -> Ended:
    """`python WORDS` for a program that starts ranks, each of which leaves its process group when it ends.

    Scripts and frameworks forget that, and then one of many runs ends by SIGABRT after its work ("terminate called
    without an active exception", pytorch issue 190489). The truth must not depend on it.
    """
    folder = shop.folder / "leave"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(LEAVE, encoding="utf-8")
    path = os.pathsep.join([str(folder), environment()["PYTHONPATH"]])
    return shop.plain(*words, PYTHONPATH=path)
