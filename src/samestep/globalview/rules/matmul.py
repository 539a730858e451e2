"""Products: a sharded operand times whole weights, and products that contract the sharded dimension."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from samestep.globalview import collectives
from samestep.globalview.placement import Shard
from samestep.globalview.rules.registry import register
from samestep.globalview.rules.shape import wrap_at
from samestep.globalview.tensor import GlobalTensor, partial


def _shard_of(value: Any) -> Shard | None:
    if type(value) is GlobalTensor and isinstance(value._placement, Shard) and 0 not in value._placement.sizes:
        return value._placement
    return None


def matmul(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`matmul`, `mm`, `bmm`, `mv`, `@`."""
    if len(args) != 2 or kwargs or not all(isinstance(a, torch.Tensor) for a in args):
        return NotImplemented
    left, right = args
    if func.__name__ == "__rmatmul__":
        left, right, func = right, left, torch.matmul
    a, b = _shard_of(left), _shard_of(right)
    if a is not None and b is None and type(right) is not GlobalTensor:
        if left.dim() < 2 or a.dim == left.dim() - 1 or right.dim() > 2:
            return NotImplemented
        return wrap_at(func(left._local, collectives.broadcast(right)), a, a.dim)
    if a is None or b is None or a.sizes != b.sizes:
        return NotImplemented
    if left.dim() == right.dim() and a.dim == b.dim and a.dim < left.dim() - 2:
        return wrap_at(func(left._local, right._local), a, a.dim)
    contracted = a.dim == left.dim() - 1 and b.dim == max(0, right.dim() - 2)
    if contracted and left.dim() <= 2 and right.dim() <= 2 and left.is_floating_point():
        return partial(func(left._local, right._local))
    return NotImplemented


def linear(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`F.linear` with whole weights."""
    if kwargs.keys() - {"bias"} or not 2 <= len(args) + len(kwargs) <= 3:
        return NotImplemented
    x, *weights = [*args, *kwargs.values()]
    placement = _shard_of(x)
    if placement is None or placement.dim == x.dim() - 1 or any(type(w) is GlobalTensor for w in weights):
        return NotImplemented
    weights = [None if w is None else collectives.broadcast(w) for w in weights]
    return wrap_at(func(x._local, *weights), placement, placement.dim)


def embedding(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`F.embedding` of sharded indices in a whole table (`torch.embedding` takes them the other way round)."""
    placement = _shard_of(args[0]) if len(args) > 1 and func is F.embedding else None
    if placement is None or type(args[1]) is GlobalTensor or len(args) > 3 or kwargs.keys() - {"padding_idx"}:
        return NotImplemented
    local = func(args[0]._local, collectives.broadcast(args[1]), *args[2:], **kwargs)
    return wrap_at(local, placement, placement.dim)


def einsum(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`torch.einsum`: the letter of the sharded dimension is kept in the result, or added up over (a Partial)."""
    if kwargs or not args or not isinstance(args[0], str) or "..." in args[0] or args[0].count("->") != 1:
        return NotImplemented
    operands = list(args[1][:] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:])
    inputs, output = args[0].replace(" ", "").split("->")
    terms = inputs.split(",")
    if len(terms) != len(operands) or any(len(t) != x.dim() for t, x in zip(terms, operands, strict=True)):
        return NotImplemented
    shards = [(term, _shard_of(x)) for term, x in zip(terms, operands, strict=True) if type(x) is GlobalTensor]
    letters = {(term[p.dim], p.sizes) for term, p in shards if p is not None}
    if any(p is None for _, p in shards) or not letters:
        return NotImplemented
    letter = next(iter(letters))[0]
    alone = any(term.count(letter) != (type(x) is GlobalTensor) for term, x in zip(terms, operands, strict=True))
    if len(letters) != 1 or alone or not all(x.is_floating_point() for x in operands):
        return NotImplemented
    local = func(args[0], *[x._local if type(x) is GlobalTensor else collectives.broadcast(x) for x in operands])
    if letter not in output:
        return partial(local)
    return wrap_at(local, Shard(output.index(letter), next(iter(letters))[1]), output.index(letter))


def install() -> None:
    """Register the rules."""
    register(matmul, "matmul mm bmm mv __matmul__ __rmatmul__")
    register(linear, "linear")
    register(einsum, "einsum")
    register(embedding, "embedding")
