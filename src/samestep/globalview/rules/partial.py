"""Partial values: what is linear keeps them, everything else adds them up (by the fallback).

Integers stay Partial only where the arithmetic is exact: a quotient of counts is formed after the counts were added,
as one device does, so that an accuracy of 13/15 prints as 13/15.
"""

from __future__ import annotations

from typing import Any

import torch

from samestep.globalview import collectives
from samestep.globalview.placement import Partial
from samestep.globalview.tensor import GlobalTensor, partial

_SUMS = frozenset(["add", "sub", "subtract", "__add__", "__radd__", "__sub__", "__rsub__", "rsub"])
_IN_PLACE_SUMS = frozenset(["add_", "sub_", "subtract_", "__iadd__", "__isub__"])
_PRODUCTS = frozenset(["mul", "multiply", "__mul__", "__rmul__"])
_QUOTIENTS = frozenset(["div", "divide", "true_divide", "__truediv__", "__div__"])
_SAME = frozenset(
    ["neg", "negative", "__neg__", "clone", "contiguous", "positive", "__pos__", "cpu", "cuda", "pin_memory"]
)
_CASTS = frozenset(["to", "float", "double", "half", "bfloat16", "type"])


def linear(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The rule of element-wise functions whose global operands are all Partial."""
    name = func.__name__
    if name in _SUMS:
        return _sum(func, args, kwargs)
    if name in _IN_PLACE_SUMS:
        return _sum_in_place(func, args, kwargs)
    if name in _PRODUCTS or name in _QUOTIENTS:
        return _scaled(func, name, args, kwargs)
    if name in _SAME and _is_partial(args[0]):
        return partial(func(args[0]._local, *args[1:], **kwargs))
    if name in _CASTS and _is_partial(args[0]) and _is_float(args[0]):
        if any(isinstance(a, torch.Tensor) for a in (*args[1:], *kwargs.values())):
            return NotImplemented
        result = func(args[0]._local, *args[1:], **kwargs)
        return partial(result) if isinstance(result, torch.Tensor) and result.is_floating_point() else NotImplemented
    return NotImplemented


def _is_partial(value: Any) -> bool:
    return type(value) is GlobalTensor and type(value._placement) is Partial


def _is_float(value: torch.Tensor) -> bool:
    return value.dtype.is_floating_point or value.dtype.is_complex


def _term(value: Any) -> Any:
    """A term of a sum as this rank's share of it; None where the share is not exact (integers)."""
    if _is_partial(value):
        return value._local
    if type(value) is GlobalTensor:
        return None
    if isinstance(value, torch.Tensor):
        return collectives.divide(value) if _is_float(value) else None
    if isinstance(value, (int, float)) and value == 0:
        return value
    return None


def _sum(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if len(args) != 2 or not set(kwargs) <= {"alpha"}:
        return NotImplemented
    left, right = (_term(a) for a in args)
    if left is None or right is None:
        return _shifted(func, args, kwargs)
    if not all(_is_partial(a) or not isinstance(a, torch.Tensor) for a in args) and not _float_pair(args):
        return NotImplemented
    return partial(func(left, right, **kwargs))


def _float_pair(args: Any) -> bool:
    return all(_is_float(a) for a in args if isinstance(a, torch.Tensor))


def _shifted(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Partial ± a number: the number is shared out among the ranks (floating point only)."""
    from samestep import world

    size = world.current().size
    parts = [a._local if _is_partial(a) else a / size if isinstance(a, (int, float)) else None for a in args]
    if any(p is None for p in parts) or not _float_pair(args):
        return NotImplemented
    return partial(func(*parts, **kwargs))


def _sum_in_place(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if len(args) != 2 or not _is_partial(args[0]):
        return NotImplemented
    term = _term(args[1])
    if term is None or (isinstance(args[1], torch.Tensor) and not _is_partial(args[1]) and not _float_pair(args)):
        return NotImplemented
    func(args[0]._local, term, **kwargs)
    args[0]._quotient = None
    args[0]._seen = None
    return args[0]


def _scaled(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    if len(args) != 2 or kwargs:
        return NotImplemented
    left, right = args
    if _is_partial(left) == _is_partial(right):  # both, or none: a whole value that was changed in place
        return NotImplemented
    value, factor = (left, right) if _is_partial(left) else (right, left)
    if name in _QUOTIENTS and value is right:
        return NotImplemented
    if not _is_float(value):
        exact = isinstance(factor, int) and not isinstance(factor, bool) and name in _PRODUCTS
        if not exact:
            return NotImplemented
        return partial(func(left._local, right) if value is left else func(left, right._local))
    if isinstance(factor, torch.Tensor):
        if type(factor) is GlobalTensor:
            return NotImplemented
        factor = collectives.broadcast(factor)
    elif not isinstance(factor, (int, float)):
        return NotImplemented
    return partial(func(value._local, factor) if value is left else func(factor, value._local))
