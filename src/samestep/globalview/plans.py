"""What a call on a sharded tensor comes to, kept, so that a rule decides once for each form of call.

The decision of most rules depends only on the function, the global shape, the placement and the arguments that are no
tensors: what is called on the local piece, and the placement and shape of the result. A plan holds just that. Plans
are kept with the placement (`Shard.plans`), and looked up before any rule.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import torch

from samestep.globalview.placement import Shard
from samestep.globalview.tensor import ELSEWHERE, GlobalTensor, sharded

#: More forms of call than a program has; a program that makes ever new ones (`x[:, i]`) starts again.
_MOST_KEPT = 2048


class Plan(NamedTuple):
    """`call(local piece, *args, **kwargs)`, every tensor of whose result has this placement and global shape."""

    call: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    placement: Shard
    shape: torch.Size


_GETITEM = torch.Tensor.__getitem__


def _index_key(index: Any) -> Any:
    """An index of ints, slices, None and `...` as a key, which a slice itself is not before Python 3.12; else None."""
    if type(index) is int:
        return index
    if type(index) is not tuple:
        return None
    key: list[Any] = []
    for item in index:
        if type(item) is slice:
            key.append((slice, item.start, item.stop, item.step))
        elif type(item) is int or item is None or item is Ellipsis:
            key.append(item)
        else:
            return None
    return tuple(key)


def _key_of(func: Any, x: GlobalTensor, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a plan is kept under; `rest` are the arguments after `x`. None: nothing is kept."""
    if func is _GETITEM:
        index = _index_key(rest[0])
        return None if index is None else (func, x._shape, index)
    if kwargs:
        return (func, x._shape, rest, tuple(kwargs.items()))
    return (func, x._shape, rest)


def remember(
    func: Any,
    x: GlobalTensor,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    call: Any = None,
    call_args: tuple[Any, ...] | None = None,
) -> Any:
    """Keep how `result` came about: `func(*args, **kwargs)`, as `call` (or `func`) with other arguments. Returns it."""
    first = result if type(result) is GlobalTensor else result[0]
    placement = x._placement
    if type(placement) is not Shard or type(first._placement) is not Shard:
        return result
    plans = placement.plans
    if len(plans) >= _MOST_KEPT:
        plans.clear()
    plan = Plan(
        call or func,
        args[1:] if call_args is None else call_args,
        kwargs if call is None and call_args is None else {},
        first._placement,
        first._shape,
    )
    with contextlib.suppress(TypeError):  # an argument that cannot be a key: the rule decides each time
        key = _key_of(func, x, args[1:], kwargs)
        if key is not None:
            plans[key] = plan
    return result


def planned(func: Any, x: GlobalTensor, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result by a plan; None without one."""
    try:
        plan = x._placement.plans.get(_key_of(func, x, rest, kwargs))
    except TypeError:
        return None
    if plan is None or x._census is not None:  # a census goes with the elements: the rule's business
        return None
    call, args, options, placement, shape = plan
    result = call(x._local, *args, **options)
    if type(result) is torch.Tensor:
        return sharded(result, placement, shape)
    return type(result)([sharded(part, placement, shape) for part in result])


ELSEWHERE.planned = planned
