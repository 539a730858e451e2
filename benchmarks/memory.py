"""Memory per rank of a training step: hand-written DistributedDataParallel, the same at its best, and Samestep.

    python benchmarks/memory.py [--devices cpu:2] [--json FILE]

Each is a launch of its own, so that none finds memory that another has left. What counts is the highest resident set
(VmHWM of Linux; on GPUs torch's own count) during a few steps, less what the process held before the model was made,
given in multiples of the parameters. The batch is small: it is parameters, gradients and buckets that are compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import samestep

WIDTH, LAYERS, ROWS, STEPS = 1024, 24, 8, 6
#: How it is trained → what to give DDP; None: Samestep.
SIDES: dict[str, dict[str, bool] | None] = {
    "Samestep": None,
    "DDP": {},
    "DDP at its best": {"gradient_as_bucket_view": True, "static_graph": True, "broadcast_buffers": False},
}


def resident(device: torch.device, *, highest: bool) -> int:
    """Bytes that this process holds now, or the most that it ever has."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() if highest else torch.cuda.memory_allocated()
    field = "VmHWM:" if highest else "VmRSS:"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def taken(options: dict[str, bool] | None, to_none: bool, device: torch.device) -> tuple[float, int]:
    """Memory of a few steps in multiples of the parameters, and the bytes of those."""
    x, y = torch.randn(ROWS, WIDTH, device=device), torch.randint(0, 10, (ROWS,), device=device)
    x, y = samestep.shard(x), samestep.shard(y)
    if options is not None:
        x, y = samestep.local(x).clone(), samestep.local(y).clone()
    before = resident(device, highest=False)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model: nn.Module = nn.Sequential(*layers).to(device)
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    if options is not None:
        model = DistributedDataParallel(model, **options)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, foreach=False)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=to_none)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return (resident(device, highest=True) - before) / parameters, parameters


def inside(rendezvous: str, side: str, to_none: bool, json_path: str) -> None:
    """What every rank does: a few steps of one side; main writes the outcome."""
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options = SIDES[side]
    if options is not None:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=f"file://{rendezvous}",
            rank=samestep.rank(),
            world_size=samestep.world_size(),
        )
    share, parameters = taken(options, to_none, device)
    if options is not None:
        dist.destroy_process_group()
    if samestep.is_main():
        outcome = {"side": side, "to_none": to_none, "parameters": parameters, "taken": share}
        Path(json_path).write_text(json.dumps(outcome))


def main() -> int:
    parser = argparse.ArgumentParser(description="Memory of a step: Samestep against hand-written DDP.")
    parser.add_argument("--devices", default="cpu:2")
    parser.add_argument("--json", help="write the outcomes to this file")
    args = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as directory:
        for to_none in (True, False):
            for number, side in enumerate(SIDES):
                path = f"{directory}/{number}-{to_none}"
                samestep.launch(inside, f"{path}.meet", side, to_none, f"{path}.json", devices=args.devices)
                found.append(json.loads(Path(f"{path}.json").read_text()))
    table = Table(title=f"Most memory of main's step / parameters ({found[0]['parameters'] >> 20} MiB)")
    table.add_column("zero_grad")
    for side in SIDES:
        table.add_column(side, justify="right")
    for to_none in (True, False):
        values = [f"{outcome['taken']:.2f}" for outcome in found if outcome["to_none"] == to_none]
        table.add_row(f"set_to_none={to_none}", *values)
    Console().print(table)
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
