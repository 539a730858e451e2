"""Steps per second under Samestep against hand-written DistributedDataParallel.

    python benchmarks/overhead.py [--devices cpu:2] [--rounds 21] [--only NAME,…] [--json FILE]

All run in the same processes of one launch, on copies of the same model, with the same rows per rank, in blocks of
steps that alternate, so that what else the machine does falls on all alike. A round is DDP, Samestep, DDP at its best
(`gradient_as_bucket_view`, `static_graph`, no broadcast of buffers), DDP: Samestep is held against the mean of the two
DDP blocks, and the second DDP against the first shows the noise of the measurement.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
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
    local: bool = False  # batch norm by each rank's rows


class Block(nn.Module):
    """A residual block; with group norm, which is the same for both, or batch norm."""

    def __init__(self, width: int, batch_norm: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width) if batch_norm else nn.GroupNorm(8, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv2(F.relu(self.norm(self.conv1(x))))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 10))


def convnet(batch_norm: bool = False) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1), Block(32, batch_norm), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(32, 64, 3, padding=1), Block(64, batch_norm), nn.MaxPool2d(2), Block(64, batch_norm)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Transformer(nn.Module):
    """Ten million parameters without dropout, which the two would draw differently."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(384, 6, 1536, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(384, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x).mean(1))


#: With batch norm: local statistics in both, or the global batch's against DDP's local ones.
CASES = (
    Case("tiny MLP", mlp, (256,), rows=128, steps_per_block=40),
    Case("convnet", convnet, (3, 32, 32), rows=32, steps_per_block=8),
    Case("convnet, batch norm local", partial(convnet, True), (3, 32, 32), rows=32, steps_per_block=8, local=True),
    Case("convnet, batch norm exact", partial(convnet, True), (3, 32, 32), rows=32, steps_per_block=8),
    Case("Transformer", Transformer, (32, 384), rows=8, steps_per_block=4),
)


@dataclass(frozen=True)
class Outcome:
    """Milliseconds per step, block by block, and how far the two models are apart after a step."""

    case: str
    samestep_ms: list[float]
    ddp_ms: list[float]
    ddp_again_ms: list[float]
    best_ddp_ms: list[float]
    weights_apart: float

    def speeds(self) -> list[float]:
        """Speed of Samestep relative to DDP, round by round."""
        rounds = zip(self.ddp_ms, self.samestep_ms, self.ddp_again_ms, strict=True)
        return [(before + after) / 2 / ours for before, ours, after in rounds]

    def against_best(self) -> list[float]:
        """Speed of Samestep relative to DDP at its best, round by round."""
        return [best / ours for best, ours in zip(self.best_ddp_ms, self.samestep_ms, strict=True)]

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
    twin, third = copy.deepcopy(model), copy.deepcopy(model)
    whole = [
        (torch.randn(rows, *case.shape, device=device), torch.randint(0, 10, (rows,), device=device)) for _ in range(4)
    ]
    split = [(samestep.shard(x), samestep.shard(y)) for x, y in whole]
    mine = [(samestep.local(x).clone(), samestep.local(y).clone()) for x, y in split]
    ours, theirs = make_step(model, split), make_step(DistributedDataParallel(twin), mine)
    options = {"gradient_as_bucket_view": True, "static_graph": True, "broadcast_buffers": False}
    best = make_step(DistributedDataParallel(third, **options), mine)

    # That both do the same work is seen at once: later, rounding that flips a ReLU or a maximum sets even two plain
    # processes apart.
    ours()
    theirs()
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    apart = max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)
    for step in (ours, theirs, best):
        timed(step, 2 * case.steps_per_block)  # DDP rebuilds its buckets, the allocator and the caches settle
    samestep_ms, ddp_ms, again_ms, best_ms = [], [], [], []
    for _ in range(rounds):
        for step, times in ((theirs, ddp_ms), (ours, samestep_ms), (best, best_ms), (theirs, again_ms)):
            times.append(timed(step, case.steps_per_block))
    return Outcome(case.name, samestep_ms, ddp_ms, again_ms, best_ms, apart)


def show(outcomes: list[Outcome], ranks: int) -> Table:
    """One row per case: medians, and the middle half of the rounds in brackets."""
    table = Table(title=f"Samestep against hand-written DDP, {ranks} ranks", title_justify="left")
    for heading in ("model", "DDP ms/step", "Samestep ms/step", "/ DDP", "/ best DDP", "DDP / DDP (noise)", "apart"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for outcome in outcomes:
        table.add_row(
            outcome.case,
            f"{statistics.median(outcome.ddp_ms):.2f}",
            f"{statistics.median(outcome.samestep_ms):.2f}",
            _middle(outcome.speeds()),
            _middle(outcome.against_best()),
            _middle(outcome.noise()),
            f"{outcome.weights_apart:.0e}",
        )
    return table


def _middle(values: list[float]) -> str:
    low, median, high = statistics.quantiles(values, n=4)
    return f"{median:.3f} ({low:.3f}–{high:.3f})"


def inside(rendezvous: str, cases: list[Case], rounds: int, json_path: str | None) -> None:
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
        outcomes = [measure(case, rounds, device) for case in cases]
    finally:
        dist.destroy_process_group()
    if samestep.is_main():
        Console(width=150).print(show(outcomes, ranks))
        if json_path is not None:
            with Path(json_path).open("a") as file:
                file.writelines(json.dumps(asdict(outcome)) + "\n" for outcome in outcomes)


def main() -> int:
    parser = argparse.ArgumentParser(description="Samestep against hand-written DDP.")
    parser.add_argument("--devices", default="cpu:2")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--only", default="", help="names of cases, separated by commas without blanks")
    parser.add_argument("--json", help="append every block's time to this file, a line for each case")
    args = parser.parse_args()
    names = {case.name.replace(",", "").replace(" ", "-"): case for case in CASES}
    only = list(filter(None, args.only.split(","))) or list(names)
    if unknown := sorted(set(only) - names.keys()):
        parser.error(f"--only: no case is named {', '.join(unknown)}; there are {', '.join(names)}")
    cases = [names[name] for name in only]
    json_path = os.path.abspath(args.json) if args.json else None
    for local in (False, True):
        chosen = [case for case in cases if case.local == local]
        if chosen:
            with tempfile.TemporaryDirectory() as directory:
                # The name of the file by which DDP's processes meet is the one thing that they must be told.
                options = {"batchnorm": "local"} if local else {}
                meet = f"{directory}/ddp"
                samestep.launch(inside, meet, chosen, args.rounds, json_path, devices=args.devices, **options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
