"""Operations that treat each element by itself: arithmetic, comparisons, activations, casts, masks.

On shards they need no communication. Operands: every sharded one must hold the same rows at the same distance from
the last dimension (broadcasting aligns dimensions from the right); a whole operand that spans the sharded dimension
is cut to the rank's block, one that is broadcast along it is used as it is, with its gradient added up.

Partial values: only linear operations keep them (`samestep.globalview.rules.partial`).
"""

from __future__ import annotations

from typing import Any

import torch

from samestep.globalview import collectives
from samestep.globalview.census import pass_on
from samestep.globalview.fallback import fallback, mutates
from samestep.globalview.placement import Shard
from samestep.globalview.rules.partial import linear
from samestep.globalview.rules.registry import functions_named, register
from samestep.globalview.tensor import GlobalTensor, sharded

UNARY = """
abs absolute acos acosh arccos arccosh angle asin asinh arcsin arcsinh atan atanh arctan arctanh bitwise_not ceil
clone conj conj_physical contiguous cos cosh deg2rad digamma erf erfc erfinv exp exp2 expit expm1 fix floor frac i0
isfinite isinf isnan isneginf isposinf isreal lgamma log log10 log1p log2 logical_not logit nan_to_num neg negative
positive rad2deg reciprocal relu relu6 resolve_conj resolve_neg round rsqrt selu sgn sigmoid sign signbit sin sinc
sinh softsign sqrt square tan tanh tanhshrink trunc xlog1py ndtr ndtri log_ndtr entr erfcx i0e i1 i1e
elu celu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish silu softplus softshrink threshold
bool byte char cpu cuda double float half bfloat16 int long short to type cfloat cdouble
detach_ __neg__ __abs__ __invert__ __pos__ zero_ fill_ clamp clip clamp_min clamp_max pin_memory
"""

BINARY = """
add sub subtract mul multiply div divide true_divide floor_divide fmod remainder pow float_power atan2 arctan2
bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift copysign eq ne lt le gt ge equal_
greater greater_equal less less_equal not_equal fmax fmin maximum minimum heaviside hypot isclose ldexp logaddexp
logaddexp2 logical_and logical_or logical_xor nextafter rsub xlogy where lerp addcmul addcdiv masked_fill type_as
copy_ polygamma zeta gcd lcm prelu
__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __div__ __rdiv__ __floordiv__
__rfloordiv__ __mod__ __rmod__ __pow__ __rpow__ __and__ __rand__ __or__ __ror__ __xor__ __rxor__ __lshift__
__rlshift__ __rshift__ __rrshift__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__
"""
_SAME_ELEMENTS = frozenset(["to", "long", "int64", "cpu", "cuda", "clone", "contiguous", "pin_memory", "detach"])
IN_PLACE_DUNDERS = """
__iadd__ __isub__ __imul__ __itruediv__ __idiv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__
__ilshift__ __irshift__
"""


def pointwise(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The rule of all element-wise functions."""
    if not kwargs and func in _PURE:
        result = _usual(func, args)
        if result is not None:
            return result
    lead, plain = _lead(args, kwargs)
    if lead is None:
        return linear(func, args, kwargs)
    if plain or any(isinstance(value, torch.Tensor) for value in kwargs.values()):
        aligned = _aligned(args, kwargs, lead)
        if aligned is None:
            return NotImplemented
        local_args, local_kwargs = aligned
    else:
        local_args = tuple(a._local if type(a) is GlobalTensor else a for a in args)
        local_kwargs = kwargs
    name = func.__name__
    if mutates(func, name, kwargs):
        return _in_place(func, args, kwargs, local_args, local_kwargs)
    result = _rewrap(func(*local_args, **local_kwargs), lead)
    if lead._census is not None and name in _SAME_ELEMENTS and result is not NotImplemented:
        return pass_on(lead, result)
    return result


#: Functions that change none of their arguments; filled by `install`.
_PURE: set[Any] = set()
_NUMBERS = (int, float, bool)


def _usual(func: Any, args: Any) -> GlobalTensor | None:
    """The usual calls at little cost: one sharded operand, perhaps with a number, or two with the same rows."""
    a = args[0]
    if len(args) == 1:
        lead = a
        if type(a) is not GlobalTensor or type(a._placement) is not Shard or a._census is not None:
            return None
        result = func(a._local)
    elif len(args) == 2:
        b = args[1]
        if type(a) is GlobalTensor:
            p = a._placement
            if type(p) is not Shard or a._census is not None:
                return None
            lead = a
            if type(b) is GlobalTensor:
                q = b._placement
                if (p is not q and p != q) or a._shape != b._shape:
                    return None
                result = func(a._local, b._local)
            elif type(b) in _NUMBERS:
                result = func(a._local, b)
            else:
                return None
        else:
            return None
    else:
        return None
    if type(result) is torch.Tensor and result.shape == lead._local.shape and result is not lead._local:
        return sharded(result, lead._placement, lead._shape)
    out: GlobalTensor | None = _rewrap(result, lead)
    return None if out is NotImplemented else out


def _lead(args: Any, kwargs: dict[str, Any]) -> tuple[GlobalTensor | None, bool]:
    """The first sharded operand, and whether the others need a look (whole, partial, or sharded otherwise)."""
    lead: GlobalTensor | None = None
    place: Shard | None = None
    plain = False
    for a in args:
        if type(a) is GlobalTensor:
            p = a._placement
            if type(p) is not Shard:
                plain = True
            elif lead is None:
                lead, place = a, p
            elif not _same_rows(a, p, lead, place):  # type: ignore[arg-type]
                plain = True
            elif a.ndim != lead.ndim and a.ndim > lead.ndim:
                lead, place = a, p
        elif isinstance(a, torch.Tensor):
            plain = True
    if lead is None:
        for a in kwargs.values():
            if type(a) is GlobalTensor and type(a._placement) is Shard:
                return a, True
    return lead, plain


def _same_rows(a: GlobalTensor, p: Shard, b: GlobalTensor, q: Shard) -> bool:
    # Counted from the right, as broadcasting does: the rows of (N,) lie along the columns of (N, M).
    return (p is q or p.sizes == q.sizes) and a._local.dim() - p.dim == b._local.dim() - q.dim


def _aligned(args: Any, kwargs: dict[str, Any], lead: GlobalTensor) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    placement = lead._placement
    assert isinstance(placement, Shard)
    from_right = lead._local.dim() - placement.dim
    rows = lead._local.dim() and placement.total

    def local(value: Any) -> Any:
        if type(value) is GlobalTensor:
            p = value._placement
            if isinstance(p, Shard) and p.sizes == placement.sizes and value._local.dim() - p.dim == from_right:
                return value._local
            value = value.whole("align")
        if not isinstance(value, torch.Tensor):
            return value
        if value.dim() >= from_right:
            size = value.size(-from_right)
            if size != 1 and size != rows:
                return None
            if size == rows and rows != 1:
                return collectives.cut(value, Shard(value.dim() - from_right, placement.sizes), view=True)
            if rows == 1:
                return collectives.cut(value, Shard(value.dim() - from_right, placement.sizes), view=True)
        return collectives.broadcast(value)

    new_args = tuple(local(a) for a in args)
    new_kwargs = {key: local(value) for key, value in kwargs.items()}
    if any(n is None and o is not None for n, o in zip(new_args, args, strict=True)):
        return None
    if any(new_kwargs[key] is None and value is not None for key, value in kwargs.items()):
        return None
    return new_args, new_kwargs


def _rewrap(result: Any, lead: GlobalTensor) -> Any:
    if not isinstance(result, torch.Tensor):
        return NotImplemented
    if result is lead._local:  # `.to(…)`, `.contiguous()`, `.float()` that had nothing to do
        return lead
    placement = lead._placement
    assert isinstance(placement, Shard)
    dim = result.dim() - (lead._local.dim() - placement.dim)
    shape = list(result.shape)
    shape[dim] = placement.total
    return GlobalTensor(result, placement.at(dim), shape)


def _in_place(func: Any, args: Any, kwargs: dict[str, Any], local_args: Any, local_kwargs: dict[str, Any]) -> Any:
    target = args[0]
    if type(target) is not GlobalTensor or type(target._placement) is not Shard or kwargs.get("out") is not None:
        # A whole tensor changed by a sharded operand must get every row.
        return fallback(func, args, kwargs)
    if local_args[0] is not target._local:
        return fallback(func, args, kwargs)
    func(*local_args, **local_kwargs)
    target._seen = None
    target._quotient = None
    return target


def type_of(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`x.type()` names the type; with an argument it is a cast."""
    if len(args) == 1 and not kwargs:
        return func(args[0]._local)
    return pointwise(func, args, kwargs)


def install() -> None:
    """Register the rule."""
    names = (UNARY + BINARY).split()
    register(pointwise, names + [n + "_" for n in names if not n.startswith("_") and not n.endswith("_")])
    register(pointwise, IN_PLACE_DUNDERS)
    for name in names:
        if not name.endswith("_") or name.startswith("__"):
            _PURE.update(functions_named(name))
    register(type_of, "type")
