"""PyTorch's operator database through DTensor and through GlobalTensor: right, wrong, refused, hung.

    python benchmarks/coverage.py [--devices cpu:2] [--samples 10] [--part 0/1] [--json FILE]

Each operator and sample with its first tensor argument sharded by rows (`Shard(0)`, `implicit_replication` for
DTensor), evenly and unevenly, in processes of their own for each of the two, so that a call that hangs or dies takes
only its operator with it. The truth is the same call on plain tensors in the same process. An outcome is of the whole
run: right if it is right on every rank; wrong if some rank has another value, shape, dtype or gradient without an
error; refused if it raises where plain does not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "conformance"))

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

import samestep

KINDS = ("DTensor", "GlobalTensor")
OUTCOMES = ("right", "wrong", "refused", "hung or died")
HERE = os.path.abspath(__file__)


def rows_of(sample: Any) -> int:
    """Rows of the first tensor argument, 0 without one."""
    from torch.utils._pytree import tree_flatten

    tensors = [t for t in tree_flatten(sample)[0] if isinstance(t, torch.Tensor)]
    usable = [t for t in tensors if t.dim() > 0 and t.layout is torch.strided]
    return usable[0].size(0) if usable else 0


class Wrapper:
    """Shards the first tensor argument of a sample with rows, as one of the two kinds."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        if kind == "DTensor":
            from torch.distributed.device_mesh import init_device_mesh

            self._mesh = init_device_mesh("cpu", (samestep.world_size(),))

    def convert(self, sample: Any, grad: bool, shard: bool) -> tuple[Any, list[torch.Tensor]]:
        """The sample with fresh leaves, the first with rows sharded; and the leaves."""
        from torch.utils._pytree import tree_map

        leaves: list[torch.Tensor] = []
        done = False

        def one(value: Any) -> Any:
            nonlocal done
            if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
                return value
            leaf = value.detach().clone().requires_grad_(value.requires_grad and grad)
            if shard and not done and value.dim() > 0:
                done = True
                if self._kind == "GlobalTensor":
                    leaves.append(leaf)
                    return samestep.shard(leaf)
                from torch.distributed.tensor import Shard, distribute_tensor

                spread = distribute_tensor(leaf.detach(), self._mesh, [Shard(0)]).requires_grad_(leaf.requires_grad)
                leaves.append(spread)
                return spread
            leaves.append(leaf)
            return leaf.view_as(leaf) if leaf.requires_grad else leaf

        return tree_map(one, sample), leaves

    def whole(self, value: Any) -> Any:
        """A result made plain."""
        if self._kind == "GlobalTensor":
            return samestep.whole(value)
        from torch.distributed.tensor import DTensor
        from torch.utils._pytree import tree_map

        return tree_map(lambda v: v.full_tensor() if isinstance(v, DTensor) else v, value)

    def context(self) -> Any:
        """In which the call is made."""
        if self._kind == "GlobalTensor":
            return contextlib.nullcontext()
        from torch.distributed.tensor.experimental import implicit_replication

        return implicit_replication()


def outcome_of(op: Any, sample: Any, grad: bool, wrapper: Wrapper, shard: bool) -> tuple[str, Any]:
    """("value", outputs and gradients) or ("raised", type)."""
    from torch.utils._pytree import tree_flatten

    (input, args, kwargs), leaves = wrapper.convert(sample, grad, shard)
    torch.manual_seed(7)
    try:
        with wrapper.context(), torch.set_grad_enabled(grad):
            out = op(input, *args, **kwargs)
            flat = tree_flatten(wrapper.whole(out))[0]
            result: list[Any] = [o.detach().clone() if isinstance(o, torch.Tensor) else o for o in flat]
            tracked = [o for o in flat if isinstance(o, torch.Tensor) and o.requires_grad]
            if grad and tracked:
                torch.manual_seed(8)
                loss = sum((o * torch.rand(o.shape)).sum() for o in tracked)
                (loss.abs() if loss.is_complex() else loss).backward()
            gradients = [None if t.grad is None else wrapper.whole(t.grad).detach().clone() for t in leaves]
            return "value", result + (gradients if grad else [])
    except Exception as error:
        return "raised", f"{type(error).__name__}: {error}"


def verdict(plain: tuple[str, Any], ours: tuple[str, Any]) -> str:
    """right, wrong or refused on this rank."""
    from judging import judge

    if plain[0] == "raised":
        return "right" if ours[0] == "raised" else "wrong"
    if ours[0] == "raised":
        return "refused"
    return "wrong" if judge(plain, ours) else "right"


def judge_operator(op: Any, limit: int, wrapper: Wrapper, say: Callable[[dict[str, Any]], None]) -> None:
    """Judge an operator's samples; `say` gets a line for each."""
    from operators import UNDEFINED, name_of, samples_of

    if op.name in UNDEFINED:
        return
    samples, grad = samples_of(op, limit)
    for sample in samples:
        rows = rows_of(sample)
        if rows == 0:
            continue
        plain = outcome_of(op, sample, grad, wrapper, shard=False)
        ours = outcome_of(op, sample, grad, wrapper, shard=True)
        everyone: list[Any] = samestep.world.current().all_gather_objects(verdict(plain, ours))
        worst = next((w for w in ("wrong", "refused") if w in everyone), "right")
        even = rows % samestep.world_size() == 0
        say({"op": name_of(op), "rows": "even" if even else "uneven", "outcome": worst})


def inside(kind: str, first: int, names: list[str], limit: int, rendezvous: str, record: str) -> None:
    """Judge these operators from the `first` on; every line is on disk before the next call begins."""
    from torch.testing._internal.common_methods_invocations import op_db

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=samestep.rank(),
        world_size=samestep.world_size(),
        timeout=timedelta(seconds=20),
    )
    wrapper = Wrapper(kind)
    by_name: dict[str, list[Any]] = {}
    for op in op_db:
        by_name.setdefault(op.name, []).append(op)
    with open(record if samestep.is_main() else os.devnull, "a", encoding="utf-8") as file:

        def say(line: dict[str, Any]) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        for position in range(first, len(names)):
            say({"begin": position})
            for op in by_name[names[position]]:
                if op.dtypes:
                    judge_operator(op, limit, wrapper, say)
        say({"end": True})


def run_kind(kind: str, names: list[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """All lines about one kind; a launch that hangs or dies is followed by another behind the operator it was at."""
    lines: list[dict[str, Any]] = []
    first = 0
    while first < len(names):
        with tempfile.TemporaryDirectory() as directory:
            record = f"{directory}/record"
            Path(record).touch()
            call = {"kind": kind, "first": first, "names": names, "limit": options.samples}
            call |= {"rendezvous": f"{directory}/meet", "record": record}
            command = [sys.executable, HERE, "--devices", options.devices, "--inside", json.dumps(call)]
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
            found = watch(process, Path(record))
        lines += [line for line in found if "outcome" in line]
        if any("end" in line for line in found):
            break
        at = max((line["begin"] for line in found if "begin" in line), default=first)
        lines.append({"op": names[at], "rows": "any", "outcome": "hung or died"})
        print(f"{kind}: hung or died at {names[at]}", file=sys.stderr)
        first = at + 1
    return lines


def watch(process: subprocess.Popen[bytes], record: Path, patience: float = 60.0) -> list[dict[str, Any]]:
    """The lines that a launch wrote; it is ended when it writes none for so many seconds."""
    size = -1
    while True:
        try:
            process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            if record.stat().st_size != size:
                size = record.stat().st_size
                continue
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
        return [json.loads(line) for line in record.read_text().splitlines()]


def show(lines: dict[str, list[dict[str, Any]]]) -> Table:
    """Samples by outcome."""
    table = Table(title="The operator database, by sample", title_justify="left")
    for heading in ("", "rows", *OUTCOMES):
        table.add_column(heading, justify="left" if heading in ("", "rows") else "right")
    for kind, found in lines.items():
        for rows in ("even", "uneven", "any"):
            counts = Counter(line["outcome"] for line in found if line["rows"] == rows)
            if counts:
                table.add_row(kind, rows, *(str(counts[each]) for each in OUTCOMES))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description="The operator database through DTensor and GlobalTensor.")
    parser.add_argument("--devices", default="cpu:2")
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--json", help="write every outcome to this file")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        samestep.launch(inside, **json.loads(options.inside), devices=options.devices)
        return 0
    from operators import EXCLUDED
    from torch.testing._internal.common_methods_invocations import op_db

    index, parts = map(int, options.part.split("/"))
    names = [n for n in dict.fromkeys(op.name for op in op_db) if n not in EXCLUDED][index::parts]
    lines = {kind: run_kind(kind, names, options) for kind in KINDS}
    Console(width=120).print(show(lines))
    if options.json:
        Path(options.json).write_text(json.dumps(lines, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
