"""Run a small program as one plain process and under `samestep run`, and compare what the two leave behind.

The truth is always the same file run by `python`: nothing here knows what a program should print.
"""

from __future__ import annotations

import difflib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

PROGRAMS = Path(__file__).parent / "programs"
WEIGHTS = "weights.pt"
TIMEOUT_S = 60.0
#: What the issue promises: the final weights of N devices against those of one.
TOLERANCE = 1e-5

_NUMBER = re.compile(r"-?\d+\.\d+(?:[eE][-+]?\d+)?")
_FLOAT32_DIGITS = 7
_TEXT_FILES = {".csv", ".json", ".txt", ".log", ".yaml"}


@dataclass(frozen=True)
class Result:
    """What one run of a program left: its output, exit code, final weights and files (text files with their text)."""

    stdout: str
    stderr: str
    code: int
    weights: Any
    files: Mapping[str, str | None]
    seconds: float


def run_plain(program: Path, directory: Path, *args: str) -> Result:
    """Run `python program weights.pt args…` in the empty `directory`."""
    return _run([sys.executable, str(program), WEIGHTS, *args], directory)


def run_samestep(program: Path, ranks: int, directory: Path, *args: str) -> Result:
    """The same under `samestep run` on that many CPU ranks."""
    launcher = [sys.executable, "-m", "samestep", "run", "--devices", f"cpu:{ranks}"]
    return _run([*launcher, str(program), WEIGHTS, *args], directory)


def _run(command: Sequence[str], directory: Path) -> Result:
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=directory,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        # The ranks are in the launcher's session: a hanging program must not outlive its test.
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        raise AssertionError(f"no end after {TIMEOUT_S:.0f} s: {command}\n{stdout}\n{stderr}") from None
    seconds = time.perf_counter() - began
    saved = directory / WEIGHTS
    weights = torch.load(saved, weights_only=True) if saved.exists() else None
    return Result(stdout, stderr, process.returncode, weights, _files(directory), seconds)


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    # One thread each: the order in which threads add up must not be a second difference between the runs.
    environment.update(OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", PYTHONHASHSEED="0", COLUMNS="200")
    # A test session that itself runs under some launcher must not pass that on.
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"):
        environment.pop(name, None)
    return environment


def _files(directory: Path) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for path in sorted(directory.rglob("*")):
        # TensorBoard puts the time, the host and the process id into the name, which no two runs share.
        name = re.sub(r"events\.out\.tfevents\..*", "events.out.tfevents", str(path.relative_to(directory)))
        while name in found:
            name += "+"
        found[name] = path.read_text() if path.suffix in _TEXT_FILES else None
    return found


# ---------------------------------------------------------------------- comparing
def largest_relative_difference(truth: Any, other: Any) -> float:
    """max|a-b| / max|a| of every tensor in two nests of the same form, the largest of them."""
    expected, got = dict(_tensors(truth)), dict(_tensors(other))
    assert expected, "the program saved no tensor"
    assert list(expected) == list(got), f"other keys: {sorted(expected.keys() ^ got.keys())}"
    return max(_relative_difference(expected[key], got[key]) for key in expected)


def _relative_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    assert a.shape == b.shape and a.dtype == b.dtype, f"{a.dtype} {a.shape} is not {b.dtype} {b.shape}"
    if a.numel() == 0:
        return 0.0
    difference = (a.double() - b.double()).abs().max().item()
    largest = a.double().abs().max().item()
    return difference / largest if largest else difference


def _tensors(value: Any, path: str = "") -> list[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        return [(path, value)]
    if isinstance(value, Mapping):
        return [leaf for key, child in value.items() for leaf in _tensors(child, f"{path}/{key}")]
    return []


def differences(truth: str, other: str) -> str:
    """The lines in which two outputs differ, as a diff; empty if they are the same.

    Same means byte for byte, except that a printed decimal fraction may be off by one in its last digit. Numbers that
    agree to 1e-7 can still lie on two sides of a rounding boundary, on some processor, for some line in a thousand.
    A number with more digits than float32 has (a log with full precision) need only agree as the weights must.
    """
    if _same_text(truth, other):
        return ""
    lines = difflib.unified_diff(truth.splitlines(), other.splitlines(), "one process", "samestep", lineterm="", n=0)
    return "\n".join(lines)


def _same_text(truth: str, other: str) -> bool:
    if _NUMBER.sub("#", truth) != _NUMBER.sub("#", other):
        return False
    return all(map(_same_number, _NUMBER.findall(truth), _NUMBER.findall(other)))


def _same_number(a: str, b: str) -> bool:
    if a == b:
        return True
    difference = abs(float(a) - float(b))
    if min(_significant_digits(a), _significant_digits(b)) > _FLOAT32_DIGITS:
        return difference <= TOLERANCE * abs(float(a))
    mantissa, _, exponent = a.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    if decimals != len(b.lower().partition("e")[0].partition(".")[2]):
        return False
    return difference <= 1.001 * 10.0 ** (int(exponent or 0) - decimals)


def _significant_digits(number: str) -> int:
    return len(number.lower().partition("e")[0].replace(".", "").lstrip("-0"))


def assert_same(truth: Result, other: Result) -> float:
    """Fail unless a run under samestep left what one process did; the largest relative difference of weights."""
    assert truth.code == 0, f"the program fails by itself:\n{truth.stderr}"
    assert other.code == 0, f"exit code {other.code}\n{other.stdout}\n{other.stderr}"
    assert "Traceback" not in other.stderr, other.stderr
    changed = differences(truth.stdout, other.stdout)
    assert not changed, f"other lines on the terminal:\n{changed}"
    assert sorted(truth.files) == sorted(other.files)
    for name, text in truth.files.items():
        changed = differences(text or "", other.files[name] or "")
        assert not changed, f"other lines in {name}:\n{changed}"
    difference = largest_relative_difference(truth.weights, other.weights)
    assert difference <= TOLERANCE, f"the final weights differ by {difference:.1e} relative"
    return difference
