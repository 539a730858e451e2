"""Starts the checks of a file on some ranks and reads what came of them; the other side of `runner.py`."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

RUNNER = Path(__file__).parent / "runner.py"
TESTS = Path(__file__).parents[1]
PREFIX = "@@ "
#: For the checks of one file together; the runner ends a single one that hangs much earlier.
TIMEOUT_S = 600.0
#: Launches that end early (a check that hung or killed a rank) before the rest of the file is given up.
MOST_LAUNCHES = 6
#: Broken claims of one check that are shown.
MOST_LINES = 40

_NOT_OURS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES")


def checks_in(path: Path) -> list[str]:
    """The names of the checks, without importing the file (it may need ranks)."""
    tree = ast.parse(path.read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")]


def run_checks(path: Path, ranks: int, directory: Path, names: list[str] | None = None) -> dict[str, str]:
    """The outcome of the named checks, or of every one, by name: empty if its claims hold, else what was broken."""
    outcomes: dict[str, str] = {}
    names = checks_in(path) if names is None else names
    for _ in range(MOST_LAUNCHES):
        waiting = [name for name in names if name not in outcomes]
        if not waiting:
            break
        stdout, stderr, ended = _launch(path, ranks, directory, waiting)
        begun = _read(stdout, outcomes)
        if begun is not None and begun not in outcomes:
            outcomes[begun] = f"never came to its end ({ended})\n{stderr[-6000:]}"
        elif waiting[0] not in outcomes:
            outcomes[waiting[0]] = f"never began ({ended})\n{stdout[-2000:]}\n{stderr[-6000:]}"
    return outcomes


def _read(stdout: str, outcomes: dict[str, str]) -> str | None:
    """Take the outcomes that a launch printed; the last check that it began."""
    begun = None
    for line in stdout.splitlines():
        if not line.startswith(PREFIX):
            continue
        message = json.loads(line[len(PREFIX) :])
        begun = message.get("begin", begun)
        if "end" in message:
            outcomes[message["end"]] = _told(message["broken"])
    return begun


def _told(broken: dict[str, list[str]]) -> str:
    """The broken claims, each once with the ranks that saw it."""
    ranks: dict[str, list[str]] = {}
    for rank, notes in broken.items():
        for text in notes:
            ranks.setdefault(text, []).append(rank)
    lines = [f"rank {' and '.join(seen)}: {text}" for text, seen in ranks.items()]
    return "\n".join(
        lines[:MOST_LINES] + ([f"… and {len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else [])
    )


def _launch(path: Path, ranks: int, directory: Path, names: list[str]) -> tuple[str, str, str]:
    environment = {key: value for key, value in os.environ.items() if key not in _NOT_OURS}
    path_given = environment.get("PYTHONPATH")
    python_path = str(TESTS) if not path_given else os.pathsep.join([str(TESTS), path_given])
    environment.update(OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", PYTHONPATH=python_path)
    command = [sys.executable, "-m", "samestep", "run", "--devices", f"cpu:{ranks}", str(RUNNER), str(path)]
    process = subprocess.Popen(
        [*command, *names],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        return stdout, stderr, f"exit code {process.returncode}"
    except subprocess.TimeoutExpired:
        # The ranks are in the launcher's session: none of them may outlive the test.
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        return stdout, stderr, f"killed after {TIMEOUT_S:.0f} s"
