"""Reductions, and functions that work along other dimensions than the sharded one."""

from __future__ import annotations

from typing import Any

import torch

from samestep.globalview.placement import Partial, Shard
from samestep.globalview.rules.registry import bind, only_first_is_global, register
from samestep.globalview.tensor import GlobalTensor, numel_of, partial

#: Reduce the named dimensions (one or several).
_REDUCING = """
sum mean prod any all amax amin max min argmax argmin std var norm logsumexp median nanmedian mode nansum nanmean
count_nonzero var_mean std_mean aminmax vector_norm quantile kthvalue
"""
#: Keep the shape, work along one dimension.
_ALONG = """
softmax log_softmax softmin normalize cumsum cumprod logcumsumexp cummax cummin sort argsort msort flip roll
glu topk
"""
_DIM_AFTER_K = frozenset({"topk", "kthvalue", "roll", "norm", "vector_norm", "normalize", "quantile"})


def _dims(value: Any, ndim: int) -> tuple[int, ...] | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        value = (value,)
    if not isinstance(value, (tuple, list)) or not all(isinstance(d, int) and -ndim <= d < ndim for d in value):
        return None
    return tuple(d % ndim for d in value)


def _named(func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any] | None:
    name = func.__name__
    if name in ("topk", "kthvalue"):
        return bind(args, kwargs, "k", "dim", "keepdim" if name == "kthvalue" else "largest", "sorted", "out")
    if name in ("norm", "vector_norm"):
        return bind(args, kwargs, "ord" if name == "vector_norm" or "ord" in kwargs else "p", "dim", "keepdim", "dtype")
    if name == "normalize":
        return bind(args, kwargs, "p", "dim", "eps", "out")
    if name == "quantile":
        return None
    if name == "roll":
        return bind(args, kwargs, "shifts", "dims")
    if name in ("std", "var", "var_mean", "std_mean"):
        if any(isinstance(a, bool) for a in args[1:2]):
            return None
        return bind(args, kwargs, "dim", "unbiased", "keepdim", "correction")
    if name in ("sort", "argsort"):
        return bind(args, kwargs, "dim", "descending", "stable")
    if name in ("softmax", "log_softmax", "softmin") and not hasattr(func, "__objclass__") and "_stacklevel" in (
        getattr(getattr(func, "__code__", None), "co_varnames", ())
    ):
        return bind(args, kwargs, "dim", "_stacklevel", "dtype")
    if name in ("softmax", "log_softmax", "cumsum", "cumprod", "logcumsumexp"):
        return bind(args, kwargs, "dim", "dtype")
    if name == "flip":
        return {"dims": args[1:] if len(args) > 2 else (args[1] if len(args) > 1 else kwargs.get("dims"))}
    return bind(args, kwargs, "dim", "keepdim", "dtype", "axis", "keepdims")


def _setup(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[GlobalTensor, Shard, dict[str, Any]] | None:
    x = args[0] if args else None
    if type(x) is not GlobalTensor or not isinstance(x._placement, Shard) or not only_first_is_global(args, kwargs):
        return None
    if 0 in x._placement.sizes:  # an operation that refuses zero rows must refuse, or not, on every rank
        return None
    named = _named(func, args, kwargs)
    if named is None or named.get("out") is not None:
        return None
    return x, x._placement, named


def reducing(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A reduction: over other dimensions it stays sharded; sums and means over the sharded one become Partial."""
    name = func.__name__
    ready = _setup(func, args, kwargs)
    if ready is None:
        return _of_partial(func, name, args, kwargs)
    x, placement, named = ready
    ndim = x._local.dim()
    dim = named.get("dim", named.get("axis"))
    dims = tuple(range(ndim)) if dim is None or dim == () or dim == [] else _dims(dim, ndim)
    if dims is None:
        return NotImplemented
    keep = bool(named.get("keepdim", named.get("keepdims", False)))
    if placement.dim in dims:
        return _over_rows(name, x, dims, keep, named) if name in ("sum", "mean") else NotImplemented
    if name == "norm" and (isinstance(named.get("p"), str)):
        return NotImplemented
    result = func(x._local, *args[1:], **kwargs)
    new_dim = placement.dim if keep else placement.dim - sum(d < placement.dim for d in dims)
    return _wrap_all(result, placement.at(new_dim))


def _wrap_all(result: Any, placement: Shard) -> Any:
    if isinstance(result, torch.Tensor):
        shape = list(result.shape)
        shape[placement.dim] = sum(placement.sizes)
        return GlobalTensor(result, placement, shape)
    return type(result)([_wrap_all(r, placement) for r in result])


def _over_rows(name: str, x: GlobalTensor, dims: tuple[int, ...], keep: bool, named: dict[str, Any]) -> Any:
    dtype = named.get("dtype")
    local = x._local
    if name == "sum":
        return partial(local.sum(dims, keepdim=keep, dtype=dtype))
    count = numel_of(x.size(d) for d in dims)
    result_dtype = dtype or local.dtype
    if count == 0 or not result_dtype.is_floating_point:
        return NotImplemented
    # Half precision is added up in single precision, as torch's own mean does, else the sum could overflow.
    wide = torch.float32 if result_dtype in (torch.float16, torch.bfloat16) else result_dtype
    numerator = local.sum(dims, keepdim=keep, dtype=wide)
    return partial((numerator / count).to(result_dtype), (numerator.detach(), count))


def _of_partial(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """sum and mean are linear: of a Partial they are Partial."""
    x = args[0] if args else None
    if type(x) is not GlobalTensor or type(x._placement) is not Partial or name not in ("sum", "mean"):
        return NotImplemented
    if len(args) == 1 and not kwargs and x._local.dim() == 0 and x.dtype.is_floating_point:
        return partial(func(x._local), x._quotient)
    if not only_first_is_global(args, kwargs) or (name == "mean" and not x.dtype.is_floating_point):
        return NotImplemented
    return partial(func(x._local, *args[1:], **kwargs)) if "out" not in kwargs else NotImplemented


def along(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A function along another dimension keeps the placement."""
    ready = _setup(func, args, kwargs)
    if ready is None:
        return NotImplemented
    x, placement, named = ready
    name = func.__name__
    default = {"normalize": 1, "sort": -1, "argsort": -1, "topk": -1, "glu": -1, "msort": 0}.get(name)
    dim = named.get("dim", named.get("dims", default))
    if dim is None:
        dim = default
    dims = _dims(dim, x._local.dim())
    if not dims or placement.dim in dims:
        return NotImplemented
    return _wrap_all(func(x._local, *args[1:], **kwargs), placement)


def install() -> None:
    """Register the rules."""
    register(reducing, _REDUCING)
    register(along, _ALONG)
