"""Programs started by a process that has imported torch already: of a small program's time most is that import.

`WarmStart` talks to a process of this same file, which forks a child for each command: `python program.py …`, or
`python -m samestep run …` by the command's own function. Children are as fresh as a new process, apart from the import.
`make conformance` runs the real commands.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


class WarmStart:
    """Runs commands as `running.cold_start` does; a context manager.

    Args:
        environment: of the commands; what torch reads when it is imported counts, too.
        perturbed: start from weights that are 1e-7 larger, to measure how much a program magnifies rounding.
    """

    def __init__(self, environment: Mapping[str, str], *, perturbed: bool = False) -> None:
        self._perturbed = perturbed
        here = Path(__file__).resolve()
        paths = [str(here.parent), *filter(None, [environment.get("PYTHONPATH")])]
        self._server = subprocess.Popen(
            [sys.executable, str(here)],
            env={**environment, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> WarmStart:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()

    def __call__(self, command: Sequence[str], directory: Path, timeout_s: float) -> tuple[str, str, int | None]:
        """Standard output, standard error and exit code of a command; None as code if it did not end in time."""
        assert self._server.stdin is not None and self._server.stdout is not None
        with tempfile.TemporaryDirectory() as outputs:
            request = {
                "command": list(command[1:]),
                "directory": str(directory),
                "outputs": outputs,
                "timeout_s": timeout_s,
                "perturbed": self._perturbed,
            }
            print(json.dumps(request), file=self._server.stdin, flush=True)
            answer = self._server.stdout.readline()
            assert answer, "the process that starts programs has died"
            stdout, stderr = ((Path(outputs) / name).read_text() for name in ("stdout", "stderr"))
        return stdout, stderr, json.loads(answer)["code"]


# ---------------------------------------------------------------------- the process that forks
def serve() -> Callable[[], None]:
    """Answer requests until there are no more; in a child it returns what the child has to do."""
    import numpy  # noqa: F401
    import torch  # noqa: F401

    import samestep.cli
    import samestep.launch.local
    import samestep.session  # noqa: F401

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            answers.close()
            _settle(request)
            return lambda: _work(request)
        print(json.dumps({"code": _ended(child, request["timeout_s"])}), file=answers, flush=True)
    return lambda: None


def _ended(child: int, timeout_s: float) -> int | None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)  # with the ranks, which are in its session
    os.waitpid(child, 0)
    return None


def _settle(request: dict[str, Any]) -> None:
    """Be a new process: a session, a directory, standard streams and unseeded random numbers of its own."""
    import random

    import numpy

    os.setsid()
    os.chdir(request["directory"])
    for number, path in enumerate((os.devnull, f"{request['outputs']}/stdout", f"{request['outputs']}/stderr")):
        opened = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = os.fdopen(0)
    random.seed()
    numpy.random.seed()


def _work(request: dict[str, Any]) -> None:
    command = request["command"]
    if command[:2] == ["-m", "samestep"]:
        from samestep.cli import main

        sys.argv = ["samestep", *command[2:]]
        main(command[2:])
    import runpy

    if request["perturbed"]:
        _perturb_what_is_optimized()
    sys.argv = command
    sys.path[0] = os.path.dirname(command[0])
    runpy.run_path(command[0], run_name="__main__")


def _perturb_what_is_optimized() -> None:
    import torch

    start, seen = torch.optim.Optimizer.__init__, []

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        start(self, *args, **kwargs)
        for group in self.param_groups:
            for p in group["params"]:
                if not any(p is other for other in seen):
                    seen.append(p)
                    p.data.mul_(1 + 1e-7)

    torch.optim.Optimizer.__init__ = init  # type: ignore[method-assign]


if __name__ == "__main__":
    serve()()
