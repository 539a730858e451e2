"""PyTorch's own operator database through global tensors, against plain tensors.

Run under Samestep: `samestep run --devices cpu:2 operators.py [--samples K] [--part I/N] [--only a,b]`.
Every operator and sample with some tensor argument that has rows: that argument sharded along its first dimension and
along its last, evenly, unevenly and with an empty shard; one argument or all of equal length. Value, dtype, shape and
gradients must be those of the plain call; a sample that raises must raise the same type. Prints one JSON line per
failure and a summary, and exits with 1 if there was any failure.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

import samestep

#: Operators left out, each with the reason.
EXCLUDED = {
    "empty": "takes no tensor, contents undefined",
    "empty_like": "contents undefined",
    "new_empty": "contents undefined",
    "new_empty_strided": "contents undefined",
    "empty_permuted": "contents undefined",
    "empty_strided": "contents undefined",
    "sparse.sampled_addmm": "takes compressed sparse tensors, which are always whole",
    "sparse.mm": "takes compressed sparse tensors, which are always whole",
    "torch._scaled_mm": "its 8-bit dtype cannot be compared by torch.testing",
    "resize_": "refused: a sharded tensor cannot change its shape in place",
    "as_strided": "speaks of storage, of which a sharded tensor has no global one",
}


def size_patterns(rows: int, ranks: int) -> list[tuple[int, ...]]:
    """Even (as the loader cuts), uneven, and with an empty first shard."""
    base, extra = divmod(rows, ranks)
    even = tuple(base + (r < extra) for r in range(ranks))
    uneven = (max(0, rows - ranks + 1), *([1] * (ranks - 1))) if rows >= ranks else even
    empty = (0, *([0] * (ranks - 2)), rows)
    return list(dict.fromkeys([even, uneven, empty]))


def sharded(sample: Any, which: set[int], dim: int, pattern: int, grad: bool) -> tuple[Any, list[Any]]:
    """The sample with the tensors at positions `which` sharded; and the leaves that take gradients."""
    leaves: list[Any] = []
    counter = iter(range(10_000))

    def convert(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        position = next(counter)
        if value.layout is not torch.strided:
            return value.detach().clone()
        leaf = value.detach().clone().requires_grad_(value.requires_grad and grad)
        leaves.append(leaf)
        if position not in which or value.dim() == 0:
            return leaf if leaf.is_leaf and not leaf.requires_grad else leaf.view_as(leaf)
        at = dim % value.dim()
        patterns = size_patterns(value.size(at), samestep.world_size())
        return samestep.shard(leaf, at, patterns[pattern % len(patterns)])

    return tree_map(convert, sample), leaves


def attempt(op: Any, sample: Any, leaves: list[Any], grad: bool) -> tuple[str, Any]:
    """Outcome of one call: ("value", flat outputs and gradients) or ("raised", type name)."""
    torch.manual_seed(7)
    try:
        input, args, kwargs = sample
        with torch.set_grad_enabled(grad):
            out = op(input, *args, **kwargs)
        outs = tree_flatten(samestep.whole(out))[0]
        result: list[Any] = [o.detach().clone() if isinstance(o, torch.Tensor) else o for o in outs]
        if grad:
            tracked = [o for o in outs if isinstance(o, torch.Tensor) and o.requires_grad]
            if tracked:
                torch.manual_seed(8)
                # By shape, not `rand_like`: that would draw in the order of memory, which a gather does not keep.
                loss = sum(((o * torch.rand(o.shape)).sum()) for o in tracked)
                loss = loss.abs() if loss.is_complex() else loss
                loss.backward()
            result += [None if t.grad is None else t.grad.detach().clone() for t in leaves]
        return "value", result
    except Exception as error:
        return "raised", f"{type(error).__name__}: {str(error)[:150]}"


def same(a: Any, b: Any, path: str) -> str:
    """Empty if equal, else what differs."""
    if isinstance(a, torch.Tensor) != isinstance(b, torch.Tensor):
        if (a is None or b is None) and float((b if a is None else a).abs().sum()) == 0:
            return ""  # a gradient of zeros where plain autograd has none
        return f"{path}: {type(a).__name__} is not {type(b).__name__}"
    if not isinstance(a, torch.Tensor):
        equal = a == b or (a != a and b != b) or (isinstance(a, float) and abs(a - b) < 1e-5 * max(1, abs(a)))
        return "" if equal else f"{path}: {a!r} is not {b!r}"
    if a.shape != b.shape:
        return f"{path}: shape {tuple(b.shape)} is not {tuple(a.shape)}"
    if a.dtype != b.dtype:
        return f"{path}: dtype {b.dtype} is not {a.dtype}"
    if a.is_sparse or a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    try:
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5, equal_nan=True)
    except AssertionError as error:
        return f"{path}: {str(error).splitlines()[0]} {' '.join(str(error).split())[60:220]}"
    return ""


def judge(plain: tuple[str, Any], ours: tuple[str, Any]) -> str:
    if plain[0] == "raised":
        if ours[0] == "raised":
            kinds = [o[1].split(":")[0] for o in (plain, ours)]
            return "" if kinds[0] == kinds[1] else f"raised {ours[1]!r} instead of {plain[1]!r}"
        return f"did not raise {plain[1]!r}"
    if ours[0] == "raised":
        return f"raised {ours[1]!r}"
    if len(plain[1]) != len(ours[1]):
        return f"{len(ours[1])} results instead of {len(plain[1])}"
    pairs = enumerate(zip(plain[1], ours[1], strict=True))
    return next((s for i, (a, b) in pairs if (s := same(a, b, f"result {i}"))), "")


def variants(sample: Any) -> list[tuple[set[int], int, int]]:
    """(positions to shard, dimension, size pattern)."""
    tensors = [t for t in tree_flatten(sample)[0] if isinstance(t, torch.Tensor)]
    usable = [i for i, t in enumerate(tensors) if t.dim() > 0 and t.layout is torch.strided]
    if not usable:
        return []
    first = usable[0]
    rows = tensors[first].size(0)
    alike = {i for i in usable if tensors[i].size(0) == rows}
    found = [({first}, 0, p) for p in range(3)] + [({first}, -1, 0)]
    if len(alike) > 1:
        found += [(alike, 0, 0), (alike, 0, 2)]
    if len(usable) > 1:
        found.append(({usable[-1]}, 0, 0))
    return found


def run_operator(op: Any, limit: int, failures: list[dict[str, Any]]) -> int:
    dtype = torch.float32 if torch.float32 in op.dtypes else next(iter(sorted(op.dtypes, key=str)))
    grad = op.supports_autograd and dtype.is_floating_point
    torch.manual_seed(0)
    count = 0
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=grad))
    step = max(1, len(samples) // limit)
    for number, s in enumerate(samples[::step][:limit]):
        sample = (s.input, s.args, s.kwargs)
        for which, dim, pattern in variants(sample):
            plain_sample, plain_leaves = sharded(sample, set(), dim, pattern, grad)
            ours_sample, ours_leaves = sharded(sample, which, dim, pattern, grad)
            plain = attempt(op, plain_sample, plain_leaves, grad)
            ours = attempt(op, ours_sample, ours_leaves, grad)
            count += 1
            why = judge(plain, ours)
            everyone = samestep.world.current().all_gather_objects(why)
            why = next((f"rank {r}: {w}" for r, w in enumerate(everyone) if w), "")
            if why:
                name = f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''}"
                where = {"sample": number, "which": sorted(which), "dim": dim, "pattern": pattern}
                failures.append({"op": name, **where, "why": why})
                print(json.dumps(failures[-1]), flush=True)
                break
    return count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    index, parts = map(int, options.part.split("/"))
    only = set(filter(None, options.only.split(",")))
    failures: list[dict[str, Any]] = []
    count = operators = 0
    for position, op in enumerate(op_db):
        if not op.dtypes:  # for other devices only
            continue
        if (only and op.name not in only) or position % parts != index or op.name in EXCLUDED:
            continue
        print(f"at {op.name}", file=sys.stderr, flush=True)
        operators += 1
        try:
            count += run_operator(op, options.samples, failures)
        except Exception as error:
            print(json.dumps({"op": op.name, "why": f"harness: {type(error).__name__} {str(error)[:200]}"}), flush=True)
    print(json.dumps({"operators": operators, "checks": count, "failures": len(failures)}))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
