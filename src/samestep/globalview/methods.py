"""The commonest methods and operators, defined on `GlobalTensor` itself: a call costs half of one through dispatch.

Each does what dispatch would do where the case is the usual one (a sharded tensor, alone, with a number or with another
whose rows lie alike; or a call whose plan is known), and hands everything else to torch's own method, which
dispatches.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from samestep import torch_private
from samestep.globalview.means import mean_of
from samestep.globalview.placement import Shard
from samestep.globalview.plans import planned
from samestep.globalview.tensor import WHERE, GlobalTensor, numel_of, sharded

_NUMBERS = (int, float, bool)

#: Python's operators and what they compute from the pieces. Comparisons with numbers too: these are pure functions.
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "__add__": operator.add,
    "__radd__": lambda a, b: b + a,
    "__sub__": operator.sub,
    "__rsub__": lambda a, b: b - a,
    "__mul__": operator.mul,
    "__rmul__": lambda a, b: b * a,
    "__truediv__": operator.truediv,
    "__rtruediv__": lambda a, b: b / a,
    "__pow__": operator.pow,
    "__eq__": operator.eq,
    "__ne__": operator.ne,
    "__lt__": operator.lt,
    "__le__": operator.le,
    "__gt__": operator.gt,
    "__ge__": operator.ge,
}

_PLANNED = """
view reshape flatten squeeze unsqueeze transpose permute t sum max min argmax argmin amax amin any all prod std var
norm softmax log_softmax topk sort argsort cumsum logsumexp
"""

_CASTS = "float double half bfloat16 long int bool"

_modes = torch_private.function_modes


def _binary(name: str, compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    dispatching = getattr(torch.Tensor, name)

    def method(self: Any, other: Any) -> Any:
        placement = self._placement
        if type(placement) is Shard and not WHERE.region and not _modes():
            if type(other) in _NUMBERS:
                return sharded(compute(self._local, other), placement, self._shape)
            if type(other) is GlobalTensor and other._placement is placement and other._shape == self._shape:
                return sharded(compute(self._local, other._local), placement, self._shape)
        return dispatching(self, other)

    method.__name__ = name
    return method


def _cast(name: str) -> Callable[..., Any]:
    dispatching = getattr(torch.Tensor, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        placement = self._placement
        if args or kwargs or type(placement) is not Shard or WHERE.region or _modes():
            return dispatching(self, *args, **kwargs)
        result = dispatching(self._local)
        return self if result is self._local else sharded(result, placement, self._shape)

    method.__name__ = name
    return method


def _by_plan(name: str) -> Callable[..., Any]:
    dispatching = getattr(torch.Tensor, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not WHERE.region and not _modes():
            result = planned(dispatching, self, args, kwargs)
            if result is not None:
                return result
        return dispatching(self, *args, **kwargs)

    method.__name__ = name
    return method


_dispatching_mean = torch.Tensor.mean
_mean_by_plan = _by_plan("mean")
_SINGLE_AND_DOUBLE = (torch.float32, torch.float64)


def _mean(self: Any, *args: Any, **kwargs: Any) -> Any:
    if args or kwargs:
        return _mean_by_plan(self, *args, **kwargs)
    placement, local = self._placement, self._local
    usual = type(placement) is Shard and placement.full and local.dtype in _SINGLE_AND_DOUBLE
    if not usual or WHERE.region or _modes() or numel_of(self._shape) == 0:
        return _dispatching_mean(self)
    return mean_of(local.sum(), numel_of(self._shape), "MeanBackward0")


def install() -> None:
    """Define the methods."""
    for name, compute in _BINARY.items():
        setattr(GlobalTensor, name, _binary(name, compute))
    for name in _PLANNED.split():
        setattr(GlobalTensor, name, _by_plan(name))
    for name in _CASTS.split():
        setattr(GlobalTensor, name, _cast(name))
    setattr(GlobalTensor, "mean", _mean)  # noqa: B010 (mypy knows these methods as torch's)
    # Not `__getitem__`: a class that defines it is a sequence to C++, which then asks a scalar for its length.
