"""Judging one call: a function on plain tensors and on sharded ones, by value, dtype, shape, gradient and error."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

import samestep

Sample = tuple[Any, tuple[Any, ...], dict[str, Any]]
_SMALL_FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


def size_patterns(rows: int, ranks: int) -> list[tuple[int, ...]]:
    """Even (as the loader cuts), uneven, and with an empty first shard."""
    base, extra = divmod(rows, ranks)
    even = tuple(base + (r < extra) for r in range(ranks))
    uneven = (max(0, rows - ranks + 1), *([1] * (ranks - 1))) if rows >= ranks else even
    empty = (0, *([0] * (ranks - 2)), rows)
    return list(dict.fromkeys([even, uneven, empty]))


def variants(sample: Any) -> list[tuple[set[int], int, int]]:
    """Ways to shard a sample: (positions of the tensors to shard, dimension, pattern of sizes)."""
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


def sharded(
    sample: Any, which: set[int], dim: int, pattern: int, grad: bool, fresh: bool = False
) -> tuple[Any, list[Any]]:
    """The sample with the tensors at positions `which` sharded; and the leaves that take gradients.

    `fresh`: no argument is a leaf or a view of one, so that all can be written to.
    """
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
            if leaf.requires_grad and fresh:
                return leaf.clone()
            return leaf.view_as(leaf) if leaf.requires_grad else leaf
        at = dim % value.dim()
        patterns = size_patterns(value.size(at), samestep.world_size())
        return samestep.shard(leaf, at, patterns[pattern % len(patterns)])

    return tree_map(convert, sample), leaves


def attempt(call: Callable[..., Any], sample: Sample, leaves: list[Any], grad: bool) -> tuple[str, Any]:
    """Outcome of one call: ("value", flat outputs and gradients) or ("raised", type and message)."""
    torch.manual_seed(7)
    try:
        input, args, kwargs = sample
        with torch.set_grad_enabled(grad):
            out = call(input, *args, **kwargs)
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


def same(a: Any, b: Any, path: str, values: bool = True) -> str:
    """Empty if equal, else what differs; `values=False` looks at shape and dtype alone."""
    if isinstance(a, torch.Tensor) != isinstance(b, torch.Tensor):
        if (a is None or b is None) and float((b if a is None else a).abs().sum()) == 0:
            return ""  # a gradient of zeros where plain autograd has none
        return f"{path}: {type(b).__name__} is not {type(a).__name__}"
    if not isinstance(a, torch.Tensor):
        equal = type(a) is type(b) and (
            a == b or (a != a and b != b) or (isinstance(a, float) and abs(a - b) < 1e-5 * max(1, abs(a)))
        )
        return "" if equal else f"{path}: {b!r} is not {a!r}"
    if a.shape != b.shape:
        return f"{path}: shape {tuple(b.shape)} is not {tuple(a.shape)}"
    if a.dtype != b.dtype or a.device != b.device:
        return f"{path}: {b.dtype} on {b.device} is not {a.dtype} on {a.device}"
    return _values_differ(a, b, path) if values else ""


def _values_differ(a: torch.Tensor, b: torch.Tensor, path: str) -> str:
    if a.is_sparse or a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if a.dtype in _SMALL_FLOATS:
        a, b = a.float(), b.float()
    try:
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5, equal_nan=True)
    except AssertionError as error:
        return f"{path}: {str(error).splitlines()[0]} {' '.join(str(error).split())[60:220]}"
    return ""


def judge(plain: tuple[str, Any], ours: tuple[str, Any], values: bool = True) -> str:
    """Empty if the outcomes agree, else what differs."""
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
    return next((s for i, (a, b) in pairs if (s := same(a, b, f"result {i}", values))), "")


@dataclass
class Tally:
    """What was judged, and what was wrong."""

    checks: int = 0
    raised: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)

    def check(
        self,
        name: str,
        call: Callable[..., Any],
        sample: Sample,
        grad: bool,
        *,
        ways: list[tuple[set[int], int, int]] | None = None,
        fresh: bool = False,
        values: bool = True,
    ) -> bool:
        """Judge one call in all ways to shard its sample; the ranks agree on the verdict. False at a failure."""
        for which, dim, pattern in variants(sample) if ways is None else ways:
            plain_sample, plain_leaves = sharded(sample, set(), dim, pattern, grad, fresh)
            ours_sample, ours_leaves = sharded(sample, which, dim, pattern, grad, fresh)
            plain = attempt(call, plain_sample, plain_leaves, grad)
            ours = attempt(call, ours_sample, ours_leaves, grad)
            self.checks += 1
            self.raised += plain[0] == "raised"
            why = judge(plain, ours, values)
            everyone = samestep.world.current().all_gather_objects(why)
            why = next((f"rank {r}: {w}" for r, w in enumerate(everyone) if w), "")
            if why:
                self.failures.append({"of": name, "which": sorted(which), "dim": dim, "pattern": pattern, "why": why})
                if samestep.is_main():
                    print(json.dumps(self.failures[-1]), flush=True)
                return False
        return True

    def summary(self, **counts: int) -> str:
        """One JSON line."""
        return json.dumps({**counts, "checks": self.checks, "both_raised": self.raised, "failures": len(self.failures)})
