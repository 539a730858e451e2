"""Reductions, and functions that work along other dimensions than the sharded one."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from samestep.globalview.placement import Partial, Shard
from samestep.globalview.plans import remember
from samestep.globalview.rules.pointwise import pointwise
from samestep.globalview.rules.registry import bind, only_first_is_global, register
from samestep.globalview.tensor import GlobalTensor, numel_of, partial

#: Reduce the named dimensions (one or several).
_REDUCING = """
sum mean prod any all amax amin max min argmax argmin std var norm logsumexp median nanmedian mode nansum nanmean
count_nonzero var_mean std_mean aminmax vector_norm kthvalue
"""
#: Keep the shape, work along one dimension.
_ALONG = """
softmax log_softmax softmin normalize cumsum cumprod logcumsumexp cummax cummin sort argsort msort flip roll
glu topk
"""


def _dims(value: Any, ndim: int) -> tuple[int, ...] | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        value = (value,)
    if not isinstance(value, (tuple, list)) or not all(isinstance(d, int) and -ndim <= d < ndim for d in value):
        return None
    return tuple(d % ndim for d in value)


#: The parameters after the first, by function; a function with several signatures is told apart in `_named`.
_PARAMETERS: dict[str, tuple[str, ...]] = {
    "topk": ("k", "dim", "largest", "sorted", "out"),
    "kthvalue": ("k", "dim", "keepdim", "out"),
    "norm": ("p", "dim", "keepdim", "dtype", "out"),
    "linalg_norm": ("ord", "dim", "keepdim", "dtype", "out"),
    "vector_norm": ("ord", "dim", "keepdim", "dtype", "out"),
    "normalize": ("p", "dim", "eps", "out"),
    "roll": ("shifts", "dims"),
    "flip": ("dims",),
    "sort": ("dim", "descending", "stable", "out"),
    "argsort": ("dim", "descending", "stable"),
    "msort": (),
    "glu": ("dim",),
    "logcumsumexp": ("dim", "out"),
    "cummax": ("dim", "out"),
    "cummin": ("dim", "out"),
    "cumsum": ("dim", "dtype", "out"),
    "cumprod": ("dim", "dtype", "out"),
    **dict.fromkeys(("softmax", "log_softmax", "softmin"), ("dim", "dtype", "out")),
    **dict.fromkeys(("std", "var", "var_mean", "std_mean"), ("dim", "unbiased", "keepdim", "correction", "out")),
    **dict.fromkeys(
        ("sum", "mean", "nansum", "nanmean", "prod"), ("dim", "keepdim", "dtype", "axis", "keepdims", "out")
    ),
    **dict.fromkeys(
        [
            "any",
            "all",
            "amax",
            "amin",
            "max",
            "min",
            "argmax",
            "argmin",
            "logsumexp",
            "median",
            "nanmedian",
            "mode",
            "count_nonzero",
            "aminmax",
        ],
        ("dim", "keepdim", "axis", "keepdims", "out"),
    ),
}


def _plain_name(func: Any) -> str:
    name: str = func.__name__
    for prefix in ("special_", "linalg_"):
        if name.startswith(prefix) and name != "linalg_norm":
            return name[len(prefix) :]
    return name


def _named(func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any] | None:
    name = _plain_name(func)
    names = _PARAMETERS.get(name)
    if names is None or (args[1:2] and isinstance(args[1], bool)):  # `x.std(False)`: unbiased, not a dimension
        return None
    if name in ("softmax", "log_softmax", "softmin") and "_stacklevel" in _locals_of(func):
        names = ("dim", "_stacklevel", "dtype")  # the Python functions of torch.nn.functional
    if name == "flip" and len(args) > 2:
        return {"dims": args[1:]}
    return bind(args, kwargs, *names)


def _locals_of(func: Any) -> tuple[str, ...]:
    return getattr(getattr(func, "__code__", None), "co_varnames", ())


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
    name = _plain_name(func)
    if name in ("max", "min") and len(args) == 2 and isinstance(args[1], torch.Tensor):
        return pointwise(func, args, kwargs)  # the larger of two tensors, element by element
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
    result = func(x._local, *args[1:], **kwargs)
    new_dim = placement.dim if keep else placement.dim - sum(d < placement.dim for d in dims)
    return remember(func, x, args, kwargs, _wrap_all(result, placement.at(new_dim)))


def _wrap_all(result: Any, placement: Shard) -> Any:
    if isinstance(result, torch.Tensor):
        shape = list(result.shape)
        shape[placement.dim] = placement.total
        return GlobalTensor(result, placement, shape)
    return type(result)([_wrap_all(r, placement) for r in result])


def _over_rows(name: str, x: GlobalTensor, dims: tuple[int, ...], keep: bool, named: dict[str, Any]) -> Any:
    dtype = named.get("dtype")
    local = x._local
    everything = named.get("dim", named.get("axis")) is None
    if name == "sum":
        origin = "SumBackward0" if everything else None
        return partial(local.sum(dims, keepdim=keep, dtype=dtype), origin=origin)
    count = numel_of(x.size(d) for d in dims)
    result_dtype: torch.dtype = dtype or local.dtype
    if count == 0 or not result_dtype.is_floating_point:
        return NotImplemented
    # Half precision is added up in single precision, as torch's own mean does, else the sum could overflow.
    wide = torch.float32 if result_dtype in (torch.float16, torch.bfloat16) else result_dtype
    numerator = local.sum(dims, keepdim=keep, dtype=wide)
    origin = "MeanBackward0" if everything else "MeanBackward1"
    return partial((numerator / count).to(result_dtype), (numerator.detach(), count), origin)


def _of_partial(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """sum and mean are linear: of a Partial they are Partial."""
    x = args[0] if args else None
    if type(x) is not GlobalTensor or type(x._placement) is not Partial or name not in ("sum", "mean"):
        return NotImplemented
    if len(args) == 1 and not kwargs and x._local.dim() == 0 and x.dtype.is_floating_point:
        return partial(func(x._local), x.kept_quotient())
    if not only_first_is_global(args, kwargs) or (name == "mean" and not x.dtype.is_floating_point):
        return NotImplemented
    return partial(func(x._local, *args[1:], **kwargs)) if "out" not in kwargs else NotImplemented


def along(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A function along another dimension keeps the placement."""
    ready = _setup(func, args, kwargs)
    if ready is None:
        return NotImplemented
    x, placement, named = ready
    name = _plain_name(func)
    default = {"normalize": 1, "sort": -1, "argsort": -1, "topk": -1, "glu": -1, "msort": 0}.get(name)
    dim = named.get("dim", named.get("dims", default))
    if dim is None:
        dim = default
    dims = _dims(dim, x._local.dim())
    if not dims or placement.dim in dims:
        return NotImplemented
    result = _wrap_all(func(x._local, *args[1:], **kwargs), placement)
    method = _METHODS.get(func)
    if method is not None and isinstance(dim, int) and named.get("dtype") is None:
        return remember(func, x, args, kwargs, result, method, (dim,))
    return remember(func, x, args, kwargs, result)


#: Python functions of torch.nn.functional that do no more than call a method.
_METHODS = {F.softmax: torch.Tensor.softmax, F.log_softmax: torch.Tensor.log_softmax}


def install() -> None:
    """Register the rules."""
    register(reducing, _REDUCING)
    register(along, _ALONG)
