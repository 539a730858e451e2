"""`x[...]`, `gather`, `index_select` and their kind."""

from __future__ import annotations

import operator
from typing import Any

import torch

from samestep import world
from samestep.globalview import collectives
from samestep.globalview.fallback import fallback
from samestep.globalview.placement import Shard
from samestep.globalview.plans import remember
from samestep.globalview.rules.registry import register
from samestep.globalview.rules.shape import wrap_at
from samestep.globalview.tensor import GlobalTensor, shard_whole

_PLAIN = (int, slice, type(None), type(Ellipsis))


def _expanded(index: Any, ndim: int) -> list[Any] | None:
    """The index with its ellipsis written out; only ints, slices and None."""
    items = list(index) if isinstance(index, tuple) else [index]
    if any(isinstance(i, bool) or not isinstance(i, _PLAIN) for i in items):
        return None
    used = sum(i is not None and i is not Ellipsis for i in items)
    if Ellipsis in items:
        at = items.index(Ellipsis)
        items[at : at + 1] = [slice(None)] * (ndim - used)
    else:
        items += [slice(None)] * (ndim - used)
    return items if sum(i is not None for i in items) == ndim else None


def getitem(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Reading: other dimensions freely; a slice of the sharded one keeps what each rank has of it."""
    x, index = args
    if type(x) is not GlobalTensor or not isinstance(x._placement, Shard):
        return NotImplemented
    placement = x._placement
    if type(index) is GlobalTensor:
        return _by_mask(x, placement, index)
    items = _expanded(index, x.dim())
    if items is None:
        return _by_tensor(func, x, placement, index)
    found = _local_index(items, x, placement)
    if found is None:
        return NotImplemented
    local_items, target = found
    local_index = tuple(local_items)
    result = wrap_at(x._local[local_index], target, target.dim)
    return remember(func, x, args, kwargs, result, operator.getitem, (local_index,))


def _local_index(items: list[Any], x: GlobalTensor, placement: Shard) -> tuple[list[Any], Shard] | None:
    source = target = 0
    result: list[Any] = []
    where = placement
    for item in items:
        if item is None:
            target += 1
        else:
            if source == placement.dim:
                if not isinstance(item, slice):
                    return None
                cut = _sliced(item, x.size(source), placement, target)
                if cut is None:
                    return None
                item, where = cut
            source += 1
            target += isinstance(item, slice)
        result.append(item)
    return result, where


def _sliced(item: slice, rows: int, placement: Shard, dim: int) -> tuple[slice, Shard] | None:
    start, stop, step = item.indices(rows)
    if step != 1:
        return None
    if (start, stop) == (0, rows):
        return slice(None), placement.at(dim)
    sizes, first, mine = [], 0, slice(0, 0)
    for rank, n in enumerate(placement.sizes):
        low, high = max(start, first), min(stop, first + n)
        sizes.append(max(0, high - low))
        if rank == world.current().rank and high > low:
            mine = slice(low - first, high - first)
        first += n
    return mine, Shard(dim, tuple(sizes))


def _by_mask(x: GlobalTensor, placement: Shard, mask: GlobalTensor) -> Any:
    """`x[mask]` with a mask over the rows: each rank keeps its own; only the counts are exchanged."""
    same = isinstance(mask._placement, Shard) and mask._placement == placement
    if mask.dtype is not torch.bool or not same or placement.dim != 0:
        return NotImplemented
    if mask.dim() > x.dim() or mask._local.shape != x._local.shape[: mask.dim()]:
        return NotImplemented
    local = x._local[mask._local]
    return wrap_at(local, Shard(0, _counts(local.size(0), local.device)), 0)


def _counts(mine: int, device: torch.device) -> tuple[int, ...]:
    here = world.current()
    counts = here.all_gather(torch.tensor([mine], device=device), 0, [1] * here.size)
    return tuple(counts.tolist())


def _columns(x: GlobalTensor, placement: Shard, index: Any) -> Any:
    """`x[:, [0, 2]]`: all rows, and one list or whole tensor of integers among the other dimensions."""
    if type(index) is not tuple or placement.dim != 0 or not 2 <= len(index) <= x.dim():
        return NotImplemented
    if type(index[0]) is not slice or index[0] != slice(None):
        return NotImplemented
    chosen = [i for i in index if isinstance(i, (list, torch.Tensor))]
    if len(chosen) != 1 or not all(isinstance(i, (list, torch.Tensor, slice)) for i in index):
        return NotImplemented
    (columns,) = chosen
    if isinstance(columns, list):
        if not columns or not all(type(i) is int for i in columns):
            return NotImplemented
    elif type(columns) is not torch.Tensor or columns.dtype is not torch.int64 or columns.dim() != 1:
        return NotImplemented
    return wrap_at(x._local[index], placement, 0)


def _by_tensor(func: Any, x: GlobalTensor, placement: Shard, index: Any) -> Any:
    """`x[perm]` with a whole index of rows: the result is cut anew, so that a model still gets shards."""
    if not isinstance(index, torch.Tensor) or type(index) is GlobalTensor or placement.dim != 0:
        return _columns(x, placement, index)
    if index.dtype is torch.bool or index.dim() != 1 or index.numel() < world.current().size:
        return NotImplemented
    return _cut_anew(fallback(func, (x, index), {}))


def _cut_anew(result: torch.Tensor) -> Any:
    return shard_whole(result, 0, world.current().split(result.size(0)))


def setitem(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Writing by ints and slices of other dimensions, or by a mask over the rows, with a number or aligned rows."""
    x, index, value = args
    if type(x) is not GlobalTensor or not isinstance(x._placement, Shard):
        return NotImplemented
    placement = x._placement
    if type(index) is GlobalTensor:
        if index.dtype is not torch.bool or index._placement != placement or isinstance(value, torch.Tensor):
            return NotImplemented
        x._local[index._local] = value
    else:
        items = _expanded(index, x.dim())
        found = None if items is None else _local_index(items, x, placement)
        if found is None:
            return NotImplemented
        local_items, target = found
        if isinstance(value, torch.Tensor):
            value = _aligned_value(value, x._local[tuple(local_items)], target)
            if value is None:
                return NotImplemented
        x._local[tuple(local_items)] = value
    x._seen = None
    x._quotient = None
    return None


def _aligned_value(value: torch.Tensor, goal: torch.Tensor, target: Shard) -> torch.Tensor | None:
    from_right = goal.dim() - target.dim
    if type(value) is GlobalTensor:
        p = value._placement
        same = isinstance(p, Shard) and p.sizes == target.sizes and value._local.dim() - p.dim == from_right
        return value._local if same else None
    if value.dim() < from_right:
        return collectives.broadcast(value)
    return None


def pick(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`gather(dim, index)`, `take_along_dim`, `select`, `narrow`, `index_select` along another dimension."""
    x = args[0]
    if type(x) is not GlobalTensor or not isinstance(x._placement, Shard) or len(args) < 2 or kwargs:
        return NotImplemented
    placement = x._placement
    name = func.__name__
    if name == "take_along_dim":
        return NotImplemented
    dim = args[1]
    if not isinstance(dim, int) or dim % x.dim() == placement.dim:
        return NotImplemented
    rest = list(args[2:])
    for position, value in enumerate(rest):
        if type(value) is GlobalTensor:
            if name == "index_select" or value._placement != placement or value.dim() != x.dim():
                return NotImplemented
            rest[position] = value._local
        elif isinstance(value, torch.Tensor) and name != "index_select":
            return NotImplemented
    local = func(x._local, dim, *rest)
    return wrap_at(local, placement, placement.dim - (name == "select" and dim % x.dim() < placement.dim))


def install() -> None:
    """Register the rules."""
    register(getitem, "__getitem__")
    register(setitem, "__setitem__")
    register(pick, "gather select narrow index_select")
