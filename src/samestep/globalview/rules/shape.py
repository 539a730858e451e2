"""Views and rearrangements: the sharded dimension moves with its rows.

Local pieces are reshaped by views of the local tensor, so that aliases (`x[:, 0].zero_()`) hold as on one device.
"""

from __future__ import annotations

from typing import Any

import torch

from samestep import world
from samestep.globalview.census import pass_on
from samestep.globalview.fallback import fallback
from samestep.globalview.placement import WHOLE, Partial, Shard
from samestep.globalview.plans import remember
from samestep.globalview.rules.registry import register
from samestep.globalview.tensor import GlobalTensor, numel_of, partial, shard_whole, sharded


def _sharded(args: Any) -> Shard | None:
    x = args[0] if args else None
    if type(x) is GlobalTensor and isinstance(x._placement, Shard):
        return x._placement
    return None


def _ints(args: Any, kwargs: dict[str, Any], name: str) -> list[int] | None:
    """A list of integers given as `f(x, 1, 2)`, `f(x, (1, 2))` or by keyword."""
    values: Any = args[1:]
    if not values:
        values = kwargs.get(name, ())
    if len(values) == 1 and isinstance(values[0], (tuple, list)):
        values = values[0]
    if not isinstance(values, (tuple, list)) or not all(isinstance(v, int) for v in values):
        return None
    return list(values)


def wrap_at(local: torch.Tensor, placement: Shard, dim: int) -> GlobalTensor:
    """`local` as a global tensor whose sharded dimension is `dim`."""
    shape = list(local.shape)
    shape[dim] = placement.total
    return sharded(local, placement.at(dim), torch.Size(shape))


# ---------------------------------------------------------------------- reshape
def reshaped(shape: Any, placement: Shard, new: list[int]) -> tuple[list[int], Shard] | None:
    """The local shape and the placement after reshaping, or None if the rows do not stay one block.

    The dimensions before the sharded one must make up the same leading product before and after; then the blocks
    stay contiguous, and what follows may be merged into the sharded dimension or split off from it, as long as
    no row of the result is shared between ranks.
    """
    total = numel_of(shape)
    if total == 0:
        return None
    if new.count(-1) == 1:
        known = numel_of(n for n in new if n != -1)
        if known == 0 or total % known:
            return None
        new = [total // known if n == -1 else n for n in new]
    if numel_of(new) != total or any(n < 0 for n in new):
        return None
    before = numel_of(shape[: placement.dim])
    inner = numel_of(shape[placement.dim + 1 :])
    leading = 1
    for dim, size in enumerate(new):
        if leading == before:
            new_inner = numel_of(new[dim + 1 :])
            sizes = tuple(n * inner // new_inner for n in placement.sizes)
            if all(n * inner % new_inner == 0 for n in placement.sizes) and sum(sizes) == size:
                target = placement if sizes == placement.sizes and dim == placement.dim else Shard(dim, sizes)
                return [*new[:dim], target.rows, *new[dim + 1 :]], target
        leading *= size
    return None


def reshape(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`view`, `reshape`, `view_as`, `reshape_as`, `flatten`, `unflatten`."""
    placement = _sharded(args)
    x = args[0]
    name = func.__name__
    if placement is None:
        plain = all(isinstance(a, (int, tuple, list)) for a in (*args[1:], *kwargs.values()))
        if (
            plain
            and type(x) is GlobalTensor
            and type(x._placement) is Partial
            and name in ("view", "reshape", "flatten")
        ):
            return partial(func(x._local, *args[1:], **kwargs))
        return NotImplemented
    new = _target_shape(name, x, args, kwargs)
    if new is None:
        return NotImplemented
    found = reshaped(x.shape, placement, new)
    if found is None:
        return NotImplemented
    local_shape, target = found
    method = torch.Tensor.view if name in ("view", "view_as") else torch.Tensor.reshape
    result = wrap_at(method(x._local, local_shape), target, target.dim)
    if name not in ("view_as", "reshape_as"):  # those take another tensor
        remember(func, x, args, kwargs, result, method, (tuple(local_shape),))
    return pass_on(x, result) if x._census is not None else result


def _target_shape(name: str, x: GlobalTensor, args: Any, kwargs: dict[str, Any]) -> list[int] | None:
    if name in ("view_as", "reshape_as"):
        other = args[1] if len(args) > 1 else kwargs.get("other")
        return list(other.shape) if isinstance(other, torch.Tensor) else None
    if name in ("flatten", "unflatten", "ravel"):
        return list(func_on_meta(name, x, args, kwargs))
    return _ints(args, kwargs, "size" if name == "view" else "shape")


def func_on_meta(name: str, x: GlobalTensor, args: Any, kwargs: dict[str, Any]) -> torch.Size:
    """The shape that a view function gives, found by torch itself on a tensor without storage."""
    meta = torch.empty(x.shape, device="meta")
    result: torch.Tensor = getattr(meta, name)(*args[1:], **kwargs)
    return result.shape


# ---------------------------------------------------------------------- permutations
def permute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Any reordering of dimensions: follow the sharded one through it."""
    placement = _sharded(args)
    x = args[0]
    if placement is None:
        if type(x) is GlobalTensor and type(x._placement) is Partial and not func.__name__.endswith("_"):
            return partial(func(x._local, *args[1:], **kwargs))
        return NotImplemented
    local = func(x._local, *args[1:], **kwargs)
    order = _order(func, x._local.dim(), args, kwargs)
    return remember(func, x, args, kwargs, wrap_at(local, placement, order.index(placement.dim)))


_ORDERS: dict[Any, list[int]] = {}


def _order(func: Any, ndim: int, args: Any, kwargs: dict[str, Any]) -> list[int]:
    key = (func, ndim, str(args[1:]), str(kwargs))
    if key not in _ORDERS:
        # Sizes 2, 3, 4, … on the meta device tell where each dimension went.
        moved = func(torch.empty([2 + d for d in range(ndim)], device="meta"), *args[1:], **kwargs)
        _ORDERS[key] = [size - 2 for size in moved.shape]
    return _ORDERS[key]


def squeeze(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Drop dimensions of size 1 (never the sharded one, which may happen to be 1 on a rank)."""
    placement = _sharded(args)
    x = args[0]
    if placement is None or len(args) > 2:
        return NotImplemented
    dim = args[1] if len(args) == 2 else kwargs.get("dim")
    ndim = x._local.dim()
    if dim is None:
        dims = [d for d in range(ndim) if x.size(d) == 1]
    else:
        dims = [d % ndim for d in ((dim,) if isinstance(dim, int) else dim)]
        dims = [d for d in dims if x.size(d) == 1]
    if placement.dim in dims:
        return NotImplemented
    local = x._local.squeeze(tuple(dims)) if dims else x._local.view_as(x._local)
    result = wrap_at(local, placement, placement.dim - sum(d < placement.dim for d in dims))
    return remember(func, x, args, kwargs, result, torch.Tensor.squeeze, (tuple(dims),)) if dims else result


def unsqueeze(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Add a dimension of size 1."""
    placement = _sharded(args)
    if placement is None:
        return NotImplemented
    x = args[0]
    dim = args[1] if len(args) > 1 else kwargs["dim"]
    local = x._local.unsqueeze(dim)
    dim = dim % local.dim()
    return remember(func, x, args, kwargs, wrap_at(local, placement, placement.dim + (dim <= placement.dim)))


def expand(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`expand`, `expand_as`, `broadcast_to`: along other dimensions."""
    placement = _sharded(args)
    if placement is None:
        return NotImplemented
    x = args[0]
    if func.__name__ == "expand_as":
        other = args[1] if len(args) > 1 else kwargs.get("other")
        new: list[int] | None = list(other.shape) if isinstance(other, torch.Tensor) else None
    else:
        new = _ints(args, {k: v for k, v in kwargs.items() if k != "implicit"}, "size")
    if new is None or len(new) < x.dim():
        return NotImplemented
    dim = placement.dim + len(new) - x.dim()
    if new[dim] not in (-1, placement.total):
        return NotImplemented
    local_shape = list(new)
    local_shape[dim] = -1 if new[dim] == -1 else placement.rows
    return wrap_at(x._local.expand(local_shape), placement, dim)


def repeat(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`repeat`, `tile` along other dimensions."""
    placement = _sharded(args)
    if placement is None:
        return NotImplemented
    x = args[0]
    counts = _ints(args, kwargs, "repeats" if func.__name__ == "repeat" else "dims")
    if counts is None or len(counts) < x.dim():
        return NotImplemented
    dim = placement.dim + len(counts) - x.dim()
    if counts[dim] != 1:
        return NotImplemented
    return wrap_at(x._local.repeat(counts), placement, dim)


def unbind(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`unbind` along another dimension."""
    placement = _sharded(args)
    if placement is None:
        return NotImplemented
    x = args[0]
    dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % x.dim()
    if dim == placement.dim:
        return NotImplemented
    new_dim = placement.dim - (dim < placement.dim)
    return tuple(wrap_at(piece, placement, new_dim) for piece in x._local.unbind(dim))


def split(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`split`, `chunk`, `tensor_split` along another dimension."""
    placement = _sharded(args)
    if placement is None:
        return NotImplemented
    x = args[0]
    dim = (args[2] if len(args) > 2 else kwargs.get("dim", 0)) % x.dim()
    if dim == placement.dim:
        return NotImplemented
    pieces = func(x._local, *args[1:], **kwargs)
    return type(pieces)(wrap_at(piece, placement, placement.dim) for piece in pieces)


def join(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`cat` and `stack` along another dimension; along the sharded one the rows are exchanged and cut anew."""
    if kwargs.get("out") is not None or not isinstance(args[0], (tuple, list)) or not args[0]:
        return NotImplemented
    parts = args[0]
    if all(type(p) is GlobalTensor and isinstance(p._placement, Partial) for p in parts):
        return partial(func([p._local for p in parts], *args[1:], **kwargs))
    places = {p._placement for p in parts if type(p) is GlobalTensor and isinstance(p._placement, Shard)}
    if len(places) != 1 or not all(type(p) is GlobalTensor for p in parts):
        return NotImplemented
    (placement,) = places
    stacking = func.__name__ == "stack"
    ndim = parts[0].dim() + stacking
    dim = (args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))) % ndim
    if any(p.dim() != parts[0].dim() or not isinstance(p._placement, Shard) for p in parts):
        return NotImplemented
    if not stacking and dim == placement.dim:
        # The rows change owners: made whole, then dealt out evenly, so that a model called with them is split.
        whole = fallback(func, args, kwargs)
        return shard_whole(whole, dim, world.current().split(whole.size(dim)))
    local = func([p._local for p in parts], dim)
    return wrap_at(local, placement, placement.dim + (stacking and dim <= placement.dim))


def _take_over(x: GlobalTensor, other: torch.Tensor) -> None:
    """Let this object stand for what `other`, a view of it, stands for: `x.unsqueeze_(0)` and its kind."""
    if x._local.requires_grad and x._local.is_leaf and torch.is_grad_enabled():
        raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
    x._quotient = x._seen = x._census = None
    if type(other) is not GlobalTensor:
        x._local, x._placement, x._shape, x._source = other, WHOLE, other.shape, None
        return
    source = other._source
    if source is not None and source[0] is x:
        # Across ranks: a view of the tensor as it was, which lives on without a name.
        before = GlobalTensor(x._local, x._placement, x._shape)
        before._source = x._source
        source = (before, *source[1:])
    x._local, x._placement, x._shape = other._local, other._placement, other._shape
    x._source = source


def view_in_place(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`x.unsqueeze_(0)` and its kind: the object becomes the view of itself that the other form gives."""
    if type(args[0]) is not GlobalTensor:
        return NotImplemented
    _take_over(args[0], getattr(torch.Tensor, func.__name__[:-1])(*args, **kwargs))
    return args[0]


def install() -> None:
    """Register the rules."""
    register(reshape, "view reshape view_as reshape_as flatten unflatten ravel")
    register(permute, "permute transpose t movedim moveaxis swapaxes swapdims adjoint")
    register(squeeze, "squeeze")
    register(unsqueeze, "unsqueeze")
    register(expand, "expand expand_as broadcast_to")
    register(repeat, "repeat tile")
    register(unbind, "unbind")
    register(split, "split chunk tensor_split")
    register(view_in_place, "unsqueeze_ squeeze_ t_ transpose_ swapaxes_ swapdims_")
    register(join, "cat concat concatenate stack")
