"""What a call costs: microseconds for common operations on a plain tensor, a GlobalTensor and a DTensor.

    python benchmarks/dispatch.py [--devices cpu:2] [--json FILE]

All three in one run, in blocks that alternate, on tensors so small that the arithmetic costs nothing: what is left is
Python, dispatch and autograd's bookkeeping. The tensors are sharded by rows and need no communication in any of these
operations. DTensor's operands are `Shard(0)` too; numbers and weights are as a script has them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

import samestep

ROWS, COLUMNS = 16, 10
KINDS = ("plain", "GlobalTensor", "DTensor")

#: Name → a call on (a float matrix that takes gradients, another, class numbers).
OPERATIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a + b": lambda a, b, y: a + b,
    "a - b": lambda a, b, y: a - b,
    "a * 2": lambda a, b, y: a * 2.0,
    "a / 2": lambda a, b, y: a / 2.0,
    "a ** 2": lambda a, b, y: a**2,
    "a > 0": lambda a, b, y: a > 0,
    "y == y": lambda a, b, y: y == y,
    "a.detach()": lambda a, b, y: a.detach(),
    "y.float()": lambda a, b, y: y.float(),
    "a.view(rows, -1)": lambda a, b, y: a.view(a.size(0), -1),
    "a.unsqueeze(1)": lambda a, b, y: a.unsqueeze(1),
    "a.transpose(0, 1)": lambda a, b, y: a.transpose(0, 1),
    "a[:, 0]": lambda a, b, y: a[:, 0],
    "a.argmax(1)": lambda a, b, y: a.argmax(1),
    "a.max(1)": lambda a, b, y: a.max(1),
    "a.sum(1)": lambda a, b, y: a.sum(1),
    "a.mean()": lambda a, b, y: a.mean(),
    "F.relu(a)": lambda a, b, y: F.relu(a),
    "F.softmax(a, 1)": lambda a, b, y: F.softmax(a, 1),
    "F.log_softmax(a, 1)": lambda a, b, y: F.log_softmax(a, 1),
    "F.mse_loss(a, b)": lambda a, b, y: F.mse_loss(a, b),
    "F.cross_entropy(a, y)": lambda a, b, y: F.cross_entropy(a, y),
}


def operands() -> dict[str, tuple[Any, Any, Any]]:
    """The same three tensors of each kind; those that the script has not made itself are no leaves."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    generator = torch.Generator().manual_seed(0)
    a = torch.randn(ROWS, COLUMNS, generator=generator)
    b = torch.randn(ROWS, COLUMNS, generator=generator)
    y = torch.randint(0, COLUMNS, (ROWS,), generator=generator)
    mesh = init_device_mesh("cpu", (samestep.world_size(),))
    sharded = [distribute_tensor(t.clone(), mesh, [Shard(0)]) for t in (a, b, y)]
    mine = [samestep.local(samestep.shard(t)).clone() for t in (a, b, y)]
    ours = [samestep.shard(t) for t in (a, b, y)]
    return {
        "plain": (mine[0].requires_grad_(), mine[1], mine[2]),
        "GlobalTensor": (ours[0].requires_grad_(), ours[1], ours[2]),
        "DTensor": (sharded[0].requires_grad_(), sharded[1], sharded[2]),
    }


def microseconds(call: Callable[[Any, Any, Any], Any], values: tuple[Any, Any, Any], repeats: int) -> float:
    """The time of one call."""
    began = time.thread_time()  # no call waits for anything, so this is its cost, whatever else the machine does
    for _ in range(repeats):
        call(*values)
    return (time.thread_time() - began) / repeats * 1e6


def measure(rounds: int, repeats: int) -> dict[str, dict[str, list[float] | None]]:
    """Times by operation and kind; None where the call is refused."""
    values = operands()
    times: dict[str, dict[str, list[float] | None]] = {}
    for name, call in OPERATIONS.items():
        row: dict[str, list[float] | None] = {}
        for kind in KINDS:
            try:
                microseconds(call, values[kind], 50)
                row[kind] = []
            except Exception:
                row[kind] = None
        samestep.barrier()
        for _ in range(rounds):
            for kind in KINDS:
                found = row[kind]
                if found is not None:
                    found.append(microseconds(call, values[kind], repeats))
        times[name] = row
    return times


def show(times: dict[str, dict[str, list[float] | None]]) -> Table:
    """Medians, and ours as a part of DTensor's."""
    table = Table(title="Microseconds per call", title_justify="left")
    for heading in ("operation", *KINDS, "GlobalTensor / DTensor"):
        table.add_column(heading, justify="left" if heading == "operation" else "right")
    for name, row in times.items():
        medians = {kind: statistics.median(found) if found else None for kind, found in row.items()}
        ours, theirs = medians["GlobalTensor"], medians["DTensor"]
        ratio = f"{ours / theirs:.2f}" if ours and theirs else "refused"
        table.add_row(name, *(f"{m:.1f}" if m else "refused" for m in medians.values()), ratio)
    return table


def inside(rendezvous: str, rounds: int, repeats: int, json_path: str | None) -> None:
    """What every rank does."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=samestep.rank(),
        world_size=samestep.world_size(),
        timeout=timedelta(seconds=120),
    )
    try:
        times = measure(rounds, repeats)
    finally:
        dist.destroy_process_group()
    if samestep.is_main():
        Console(width=120).print(show(times))
        if json_path is not None:
            Path(json_path).write_text(json.dumps(times, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description="What a call costs.")
    parser.add_argument("--devices", default="cpu:2")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--json", help="write every block's time to this file")
    args = parser.parse_args()
    json_path = os.path.abspath(args.json) if args.json else None
    with tempfile.TemporaryDirectory() as directory:
        # DTensor needs torch's default group; Samestep's own groups are not among those that torch knows of.
        samestep.launch(inside, f"{directory}/dtensor", args.rounds, args.repeats, json_path, devices=args.devices)
    return 0


if __name__ == "__main__":
    sys.exit(main())
