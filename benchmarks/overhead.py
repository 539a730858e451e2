"""Steps per second under Samestep against hand-written DistributedDataParallel.

    python benchmarks/overhead.py [--devices cpu:2] [--json FILE]

Both run in the same processes of one launch, on copies of the same model, with the same rows per rank, in blocks of
steps that alternate, so that what else the machine does falls on both alike. A round is DDP, Samestep, DDP: Samestep is
held against the mean of its neighbours, and the second DDP against the first shows the noise of the measurement.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import samestep

Step = Callable[[], None]


@dataclass(frozen=True)
class Case:
    """A model and the global batch that it is trained on."""

    name: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    rows: int
    steps_per_block: int


class Block(nn.Module):
    """A residual block without batch norm, whose global statistics DDP does not have."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.GroupNorm(8, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv2(F.relu(self.norm(self.conv1(x))))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 10))


def convnet() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1), Block(32), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(32, 64, 3, padding=1), Block(64), nn.MaxPool2d(2), Block(64)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


CASES = (
    Case("tiny MLP", mlp, (256,), rows=128, steps_per_block=40),
    Case("convnet", convnet, (3, 32, 32), rows=32, steps_per_block=8),
)


@dataclass(frozen=True)
class Outcome:
    """Milliseconds per step, block by block, and how far the two models are apart after a step."""

    case: str
    samestep_ms: list[float]
    ddp_ms: list[float]
    ddp_again_ms: list[float]
    weights_apart: float

    def speeds(self) -> list[float]:
        """Speed of Samestep relative to DDP, round by round."""
        rounds = zip(self.ddp_ms, self.samestep_ms, self.ddp_again_ms, strict=True)
        return [(before + after) / 2 / ours for before, ours, after in rounds]

    def noise(self) -> list[float]:
        """Speed of DDP relative to DDP, round by round."""
        return [first / second for first, second in zip(self.ddp_ms, self.ddp_again_ms, strict=True)]


def make_step(model: nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> Step:
    """The usual step, the same for both: what differs are the model and the tensors given to it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    count = 0

    def step() -> None:
        nonlocal count
        x, y = batches[count % len(batches)]
        count += 1
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def timed(step: Step, steps: int) -> float:
    """Milliseconds per step of one block; all ranks begin together, and main's clock counts."""
    samestep.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    samestep.barrier()
    return (time.perf_counter() - began) / steps * 1000


def measure(case: Case, rounds: int, device: torch.device) -> Outcome:
    """Time alternating blocks of one case."""
    torch.manual_seed(0)
    # Equal blocks of rows: DDP averages over the ranks whatever their sizes are, and would train another model.
    rows = case.rows // samestep.world_size() * samestep.world_size()
    model = case.model().to(device)
    twin = copy.deepcopy(model)
    whole = [
        (torch.randn(rows, *case.shape, device=device), torch.randint(0, 10, (rows,), device=device)) for _ in range(4)
    ]
    split = [(samestep.shard(x), samestep.shard(y)) for x, y in whole]
    mine = [(samestep.local(x).clone(), samestep.local(y).clone()) for x, y in split]
    ours, theirs = make_step(model, split), make_step(DistributedDataParallel(twin), mine)

    # That both do the same work is seen at once: later, rounding that flips a ReLU or a maximum sets even two plain
    # processes apart.
    ours()
    theirs()
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    apart = max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)
    for step in (ours, theirs):
        timed(step, 2 * case.steps_per_block)  # DDP rebuilds its buckets, the allocator and the caches settle
    samestep_ms, ddp_ms, again_ms = [], [], []
    for _ in range(rounds):
        for step, times in ((theirs, ddp_ms), (ours, samestep_ms), (theirs, again_ms)):
            times.append(timed(step, case.steps_per_block))
    return Outcome(case.name, samestep_ms, ddp_ms, again_ms, apart)


def show(outcomes: list[Outcome], ranks: int) -> Table:
    """One row per case: medians, and the middle half of the rounds in brackets."""
    table = Table(title=f"Samestep against hand-written DDP, {ranks} ranks", title_justify="left")
    for heading in ("model", "DDP ms/step", "Samestep ms/step", "Samestep / DDP", "DDP / DDP (noise)", "weights apart"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for outcome in outcomes:
        table.add_row(
            outcome.case,
            f"{statistics.median(outcome.ddp_ms):.2f}",
            f"{statistics.median(outcome.samestep_ms):.2f}",
            _middle(outcome.speeds()),
            _middle(outcome.noise()),
            f"{outcome.weights_apart:.0e}",
        )
    return table


def _middle(values: list[float]) -> str:
    low, median, high = statistics.quantiles(values, n=4)
    return f"{median:.3f} ({low:.3f}–{high:.3f})"


def inside(rendezvous: str, rounds: int, json_path: str | None) -> None:
    """What every rank does."""
    ranks, device = samestep.world_size(), torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)
    # DDP needs torch's default group; Samestep's own groups are not among those that torch knows of.
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{rendezvous}",
        rank=samestep.rank(),
        world_size=ranks,
        timeout=timedelta(seconds=120),
    )
    try:
        outcomes = [measure(case, rounds, device) for case in CASES]
    finally:
        dist.destroy_process_group()
    if samestep.is_main():
        Console(width=120).print(show(outcomes, ranks))
    if json_path is not None:
        Path(json_path).write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description="Samestep against hand-written DDP.")
    parser.add_argument("--devices", default="cpu:2")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", help="write every block's time to this file")
    parser.add_argument("--rendezvous", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rendezvous is not None:
        inside(args.rendezvous, args.rounds, args.json)
        return 0
    if samestep.world_size() > 1:
        sys.exit("Start this file by `python`: it launches itself under samestep.")
    with tempfile.TemporaryDirectory() as directory:
        # The name of the file by which DDP's processes meet is the one thing that they must be told.
        launcher = [sys.executable, "-m", "samestep", "run", "--devices", args.devices, os.path.abspath(__file__)]
        options = ["--rendezvous", f"{directory}/ddp", "--rounds", str(args.rounds)]
        options += ["--json", os.path.abspath(args.json)] if args.json else []
        return subprocess.run([*launcher, *options], env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode


if __name__ == "__main__":
    sys.exit(main())
