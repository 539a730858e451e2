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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from contents import content_of, differing, without_times

PROGRAMS = Path(__file__).parent / "programs"
WEIGHTS = "weights.pt"
TIMEOUT_S = 60.0
#: What the issue promises: the final weights of N devices against those of one.
TOLERANCE = 1e-5

_NUMBER = re.compile(r"-?\d+\.\d+(?:[eE][-+]?\d+)?")
_FLOAT32_DIGITS = 7


@dataclass(frozen=True)
class Result:
    """What one run of a program left: its output, exit code, final weights and files (see `contents.content_of`)."""

    stdout: str
    stderr: str
    code: int
    weights: Any
    files: Mapping[str, Any]
    seconds: float


#: Starts a command in a directory: standard output and error, and the exit code, None if it did not end in time.
Start = Callable[[Sequence[str], Path, float], tuple[str, str, "int | None"]]


#: Another processor: kernels without vector instructions, which add up in another order.
OTHER_KERNELS = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}


def cold_start(
    command: Sequence[str], directory: Path, timeout_s: float, extra: Mapping[str, str] | None = None
) -> tuple[str, str, int | None]:
    """Run a command as a user does, with `extra` variables in its environment."""
    process = subprocess.Popen(
        command,
        cwd=directory,
        env={**environment(), **(extra or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        return *process.communicate(timeout=timeout_s), process.returncode
    except subprocess.TimeoutExpired:
        # The ranks are in the launcher's session: a hanging program must not outlive its test.
        os.killpg(process.pid, signal.SIGKILL)
        return *process.communicate(), None


def run_plain(
    program: Path, directory: Path, *args: str, timeout_s: float = TIMEOUT_S, start: Start = cold_start
) -> Result:
    """Run `python program weights.pt args…` in the empty `directory`."""
    return _run([sys.executable, str(program), WEIGHTS, *args], directory, timeout_s, start)


def run_samestep(
    program: Path,
    ranks: int,
    directory: Path,
    *args: str,
    timeout_s: float = TIMEOUT_S,
    options: Sequence[str] = (),
    start: Start = cold_start,
) -> Result:
    """The same under `samestep run` on that many CPU ranks, with further `options` of that command."""
    launcher = [sys.executable, "-m", "samestep", "run", "--devices", f"cpu:{ranks}", *options]
    return _run([*launcher, str(program), WEIGHTS, *args], directory, timeout_s, start)


def _run(command: Sequence[str], directory: Path, timeout_s: float, start: Start) -> Result:
    began = time.perf_counter()
    stdout, stderr, code = start(command, directory, timeout_s)
    assert code is not None, f"no end after {timeout_s:.0f} s: {command}\n{stdout}\n{stderr}"
    seconds = time.perf_counter() - began
    saved = directory / WEIGHTS
    weights = torch.load(saved, weights_only=True) if saved.exists() else None
    # The two runs have directories of their own, whose names some programs print.
    stdout, stderr = (text.replace(str(directory), "<here>") for text in (stdout, stderr))
    return Result(stdout, stderr, code, weights, _files(directory), seconds)


def environment() -> dict[str, str]:
    """What programs find in their environment."""
    environment = dict(os.environ)
    # One thread each: the order in which threads add up must not be a second difference between the runs.
    environment.update(OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", PYTHONHASHSEED="0", COLUMNS="200")
    # Bars that are drawn at every step, and not when a tenth of a second has passed.
    environment.update(TQDM_MININTERVAL="0", TQDM_MINITERS="1")
    # A test session that itself runs under some launcher must not pass that on.
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"):
        environment.pop(name, None)
    return environment


def _files(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(directory.rglob("*")):
        # TensorBoard puts the time, the host and the process id into the name, which no two runs share.
        name = re.sub(r"events\.out\.tfevents\..*", "events.out.tfevents", str(path.relative_to(directory)))
        name = re.sub(r"\b\d{10}\.\d+|[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d", "<time>", name)
        if path.is_dir():
            found[name] = None  # of one or of two seconds, it is the same directory
            continue
        while name in found:
            name += "+"
        found[name] = content_of(path, directory) if path.is_file() else None
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
    wide = torch.complex128 if a.is_complex() else torch.float64
    difference = (a.to(wide) - b.to(wide)).abs().max().item()
    largest = a.to(wide).abs().max().item()
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


@dataclass(frozen=True)
class Comparison:
    """How a run under samestep differs from one process.

    Attributes:
        lines: the lines of output that differ, as a diff; empty if none.
        numbers: whether every number printed on stdout is the same.
        files: the files or contents that differ; empty if none.
        difference: the largest relative difference of the final weights.
    """

    lines: str
    numbers: bool
    files: str
    difference: float


def compare(
    truth: Result, other: Result, *, tolerance: float = TOLERANCE, loosely: Callable[[str], str] | None = None
) -> Comparison:
    """Compare two runs that both ended well.

    With `loosely` (frameworks, which print times and draw progress bars) outputs are compared after it, without
    times, and stderr, where the frameworks log, is compared as well.
    """
    assert truth.code == 0, f"the program fails by itself:\n{truth.stderr}"
    assert other.code == 0, f"exit code {other.code}\n{other.stdout}\n{other.stderr}"
    assert "Traceback" not in other.stderr, other.stderr
    streams = [(truth.stdout, other.stdout)]
    if loosely is not None:
        both = ((truth.stdout, other.stdout), (_own(truth.stderr), _own(other.stderr)))
        streams = [(_bars_last(loosely(without_times(a))), _bars_last(loosely(without_times(b)))) for a, b in both]
    lines = "\n".join(filter(None, (differences(a, b) for a, b in streams)))
    printed, also = (_NUMBER.findall(text) for text in streams[0])
    numbers = len(printed) == len(also) and all(map(_same_number, printed, also))
    difference = largest_relative_difference(truth.weights, other.weights)
    return Comparison(lines, numbers, _differing_files(truth, other, tolerance), difference)


def _bars_last(text: str) -> str:
    """The last frames of progress bars after all else: which of two nested bars ends first is a matter of time."""
    lines = [line for line in text.splitlines() if line.strip()]
    bars = sorted(line for line in lines if "%|" in line)
    return "\n".join([*(line for line in lines if "%|" not in line), *bars])


def _differing_files(truth: Result, other: Result, tolerance: float) -> str:
    found = [f"{name}: {'missing' if name in truth.files else 'extra'}" for name in truth.files.keys() ^ other.files]
    for name in sorted((truth.files.keys() & other.files) - {WEIGHTS}):
        content, its = truth.files[name], other.files[name]
        changed = differing(content, its, _same_text, tolerance)
        if changed and isinstance(content, str) and isinstance(its, str):
            changed = differences(content, its)
        if changed:
            found.append(f"{name}: {changed}")
    return "\n".join(found)


def assert_same(truth: Result, other: Result) -> float:
    """Fail unless a run under samestep left what one process did; the largest relative difference of weights."""
    found = compare(truth, other)
    assert_nothing_differs(found)
    return found.difference


def assert_nothing_differs(found: Comparison, tolerance: float = TOLERANCE) -> None:
    """Fail with what differs."""
    assert not found.lines, f"other lines on the terminal:\n{found.lines}"
    assert not found.files, f"other files:\n{found.files}"
    assert found.difference <= tolerance, f"the final weights differ by {found.difference:.1e} relative"


def check_program(
    program: Path,
    ranks: int,
    plain: Callable[[Path], Result],
    directory: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """Run a program on that many ranks, fail unless it is the same as one process, and record how near it came."""
    difference = assert_same(plain(program), run_samestep(program, ranks, directory))
    record_property("largest_relative_difference", difference)


def _own(stderr: str) -> str:
    """What the program said there, without what Samestep said, perhaps behind an unfinished line of the program's."""
    return re.sub(r"samestep: [^\n]*\n", "", stderr)
