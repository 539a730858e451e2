"""Run `digits.py` as one process and on several devices, and show that the numbers are the same.

    python examples/compare_runs.py                       # what `make demo` runs: cpu:2 and cpu:3
    python examples/compare_runs.py --devices 0,1         # two GPUs against one

Ends with a non-zero exit code if a run fails, prints other lines, or ends with other weights.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

SCRIPT = Path(__file__).with_name("digits.py")
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Run:
    """One run of the script."""

    name: str
    lines: list[str]
    weights: dict[str, torch.Tensor]
    seconds: float


def run(name: str, launcher: list[str], epochs: int, directory: Path) -> Run:
    """Run the script behind `launcher`, its checkpoint in a file of its own."""
    checkpoint = directory / f"{name.replace(' ', '-').replace(':', '')}.pt"
    command = [*launcher, str(SCRIPT), "--epochs", str(epochs), "--out", str(checkpoint)]
    environment = dict(os.environ)
    # One thread per process, or the thread counts would be a second difference between the runs.
    environment.setdefault("OMP_NUM_THREADS", "1")
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE)
    seconds = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"{shlex.join(command)} ended with exit code {done.returncode}")
    weights = torch.load(checkpoint, map_location="cpu", weights_only=True)["model"]
    return Run(name, done.stdout.splitlines(), weights, seconds)


def largest_relative_difference(truth: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """max|a-b| / max|a| of each tensor, the largest of them."""
    if truth.keys() != other.keys():
        return float("inf")
    return max(((a - other[name]).abs().max() / a.abs().max()).item() for name, a in truth.items())


def table(runs: list[Run]) -> Table:
    """One column per run: each epoch's line, then the difference of the weights and the wall time."""
    shown = Table(title=f"{SCRIPT.name}: the same script, not edited", title_justify="left")
    shown.add_column("")
    for each in runs:
        shown.add_column(each.name, justify="right")
    for row in range(max(len(each.lines) for each in runs)):
        cells = [each.lines[row].split() if row < len(each.lines) else [] for each in runs]
        # "epoch 1 loss 0.4326 accuracy 0.9378": what is not a number in the first run's line names the row.
        label = " ".join(word for i, word in enumerate(cells[0]) if i < 2 or not word[0].isdigit())
        shown.add_row(label, *("  ".join(cell[3::2]) if cell else "no such line" for cell in cells))
    shown.add_section()
    differences = [f"{largest_relative_difference(runs[0].weights, each.weights):.1e}" for each in runs[1:]]
    shown.add_row("largest relative difference\nof the final weights", "", *differences)
    shown.add_row("wall time", *(f"{each.seconds:.1f} s" for each in runs))
    return shown


def faults(runs: list[Run]) -> list[str]:
    """What is not as it was with one device."""
    found = []
    for each in runs[1:]:
        if each.lines != runs[0].lines:
            found.append(f"{each.name}: other lines on the terminal")
        difference = largest_relative_difference(runs[0].weights, each.weights)
        if not difference < TOLERANCE:
            found.append(f"{each.name}: the final weights differ by {difference:.1e}, allowed are {TOLERANCE:.0e}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare one device with several.")
    parser.add_argument("--devices", action="append", help="a device specification; may be repeated")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    console = Console()
    runs = []
    with tempfile.TemporaryDirectory() as directory:
        with console.status("python digits.py"):
            runs.append(run("one process", [sys.executable], args.epochs, Path(directory)))
        for devices in args.devices or ["cpu:2", "cpu:3"]:
            with console.status(f"samestep run --devices {devices} digits.py"):
                launcher = [sys.executable, "-m", "samestep", "run", "--devices", devices]
                runs.append(run(f"samestep {devices}", launcher, args.epochs, Path(directory)))
    console.print(table(runs))
    found = faults(runs)
    for fault in found:
        console.print(f"[red]{fault}[/red]")
    if not found:
        console.print("Same lines, same weights.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
