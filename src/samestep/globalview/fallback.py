"""Operations without a rule: make the operands whole and run the original function. Right by construction.

What a function writes goes back into the objects that the script holds, and what would be a view on one device stays
one: a row taken from a sharded tensor can be written to, and follows what is written to the tensor.
"""

from __future__ import annotations

from typing import Any

import torch

from samestep.globalview import collectives
from samestep.globalview.placement import WHOLE, Partial, Shard
from samestep.globalview.tensor import ELSEWHERE, GlobalTensor, made_whole


def fallback(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Make every `GlobalTensor` argument whole and run the original function: right by construction."""
    name = getattr(func, "__name__", str(func))
    if mutates(func, name, kwargs):
        return _fallback_in_place(func, name, args, kwargs)
    plain_args, plain_kwargs = made_whole((tuple(args), kwargs), name)
    result = func(*plain_args, **plain_kwargs)
    if name in _VIEWS and args and type(args[0]) is GlobalTensor:
        return _as_views(result, args[0], plain_args[0], func, plain_args[1:], plain_kwargs)
    return result


#: Functions whose result is a view on one device.
_VIEW_NAMES = """
__getitem__ select narrow unbind split chunk tensor_split hsplit vsplit dsplit split_with_sizes __iter__ view view_as
reshape reshape_as flatten unflatten ravel diagonal unfold squeeze unsqueeze expand expand_as permute transpose t
movedim swapaxes T mT
"""
_VIEWS = frozenset(_VIEW_NAMES.split())


def _as_views(result: Any, base: GlobalTensor, whole: torch.Tensor, func: Any, args: Any, kwargs: Any) -> Any:
    """Results that share memory with the gathered value, so that writes to them reach `base` (see `_put_back`)."""
    if isinstance(base._placement, Partial) or base._local.is_inference():
        return result
    if not isinstance(result, torch.Tensor):
        if not isinstance(result, (tuple, list)):
            return iter(_as_views(tuple(result), base, whole, torch.unbind, (), {}))
        return type(result)(
            _view_of(part, base, whole, lambda w, i=i: func(w, *args, **kwargs)[i]) for i, part in enumerate(result)
        )
    return _view_of(result, base, whole, lambda w: func(w, *args, **kwargs))


def _view_of(part: torch.Tensor, base: GlobalTensor, whole: torch.Tensor, remake: Any) -> torch.Tensor:
    if part.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr() or part.numel() == 0:
        return part
    view = GlobalTensor(part, WHOLE, part.shape)
    view._source = (base, remake, base._local._version)
    return view


def mutates(func: Any, name: str, kwargs: dict[str, Any]) -> bool:
    """Whether the call changes its first argument (or `out=`)."""
    if name == "__setitem__" or kwargs.get("out") is not None or kwargs.get("inplace") is True:
        return True
    if name.startswith("__"):
        return name in _IN_PLACE_DUNDERS
    return name.endswith("_") and not name.endswith("__")


_IN_PLACE_OPERATORS = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
_IN_PLACE_DUNDERS = frozenset(f"__i{operator}__" for operator in _IN_PLACE_OPERATORS.split(" "))


def _fallback_in_place(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """As `fallback`, then the changed whole value is put back into the object that the script holds."""
    out = kwargs.get("out")
    targets = [out] if out is not None else [args[0]]
    if isinstance(out, (tuple, list)):
        targets = list(out)
    copies: dict[int, torch.Tensor] = {}
    for target in targets:
        if type(target) is GlobalTensor:
            # A copy, since whole values may be shared with what was looked at before.
            copies[id(target)] = target.whole(name).clone()

    def swap(value: Any) -> Any:
        return copies.get(id(value), value)

    new_args = tuple(swap(a) for a in args)
    new_kwargs = {k: type(v)(map(swap, v)) if isinstance(v, (tuple, list)) else swap(v) for k, v in kwargs.items()}
    plain_args, plain_kwargs = made_whole((new_args, new_kwargs), name)
    result = func(*plain_args, **plain_kwargs)
    for target in targets:
        if type(target) is GlobalTensor:
            _put_back(target, copies[id(target)], name)
    if result is None:
        return None
    back = {id(copies[id(t)]): t for t in targets if id(t) in copies}
    if isinstance(result, tuple):
        return type(result)([back.get(id(r), r) for r in result]) if out is not None else result
    return back.get(id(result), result)


def _put_back(target: GlobalTensor, value: torch.Tensor, name: str) -> None:
    shape = target._shape
    if value.shape != shape or value.dtype != target._local.dtype:
        raise NotImplementedError(
            f"`{name}` changes the shape or dtype of a sharded tensor in place, from {tuple(shape)} to "
            f"{tuple(value.shape)}. Use the form that returns a new tensor, or `samestep.whole(tensor)` first."
        )
    placement = target._placement
    if target._source is not None:
        base, remake, _ = target._source
        everything = base.whole(name).clone()
        remake(everything).copy_(value)
        _put_back(base, everything, name)
        target._local = remake(base.whole(name))
        target._source = (base, remake, base._local._version)
        return
    if isinstance(placement, Shard):
        with_history = value.requires_grad and torch.is_grad_enabled()
        target._local.copy_(collectives.cut(value, placement, view=not with_history))
        target._seen = None
        target._quotient = None
    else:
        target.set_piece(value, WHOLE)


def inside_region(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A global tensor reached from inside a region (an attribute that the script set): its local piece."""

    def local_piece(nest: Any) -> Any:
        if type(nest) is GlobalTensor:
            if type(nest._placement) is Partial:
                return nest.whole("inside a region")
            if nest._local.requires_grad and torch.is_grad_enabled():
                raise NotImplementedError(
                    "A sharded tensor that requires a gradient was used inside a module without being an argument of "
                    "its call. Pass it as an argument, so that its gradient can be followed."
                )
            return nest._local
        if isinstance(nest, (tuple, list)):
            return type(nest)(local_piece(value) for value in nest)
        if isinstance(nest, dict):
            return {key: local_piece(value) for key, value in nest.items()}
        return nest

    return func(*local_piece(tuple(args)), **local_piece(kwargs))


ELSEWHERE.fallback = fallback
ELSEWHERE.inside_region = inside_region
