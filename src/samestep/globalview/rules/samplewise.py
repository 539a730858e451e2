"""Functions that treat the samples of a batch one by one: pooling, convolution, resizing, padding, layer norm."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from samestep import world
from samestep.globalview import collectives
from samestep.globalview.placement import Partial, Shard
from samestep.globalview.rules.registry import register
from samestep.globalview.rules.shape import wrap_at
from samestep.globalview.tensor import GlobalTensor, Rule, numel_of, shard_whole

#: Function → number of dimensions of a batched input (with one less the first dimension is the channels).
_BATCHED = {
    f"{kind}{n}d": n + 2
    for n in (1, 2, 3)
    for kind in ("conv", "conv_transpose", "max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool", "lp_pool")
}
_BATCHED |= {"pixel_shuffle": 4, "pixel_unshuffle": 4, "grid_sample": 4, "unfold": 4, "fold": 3}
_LIKE = "zeros_like ones_like empty_like full_like"
_RANDOM_LIKE = "rand_like randn_like randint_like bernoulli"
_NEW = "new_zeros new_ones new_empty new_full new_tensor"


def _rows_first(x: Any) -> Shard | None:
    if type(x) is GlobalTensor and isinstance(x._placement, Shard) and x._placement.dim == 0:
        # An operation that refuses zero rows must refuse, or not, on every rank.
        return None if 0 in x._placement.sizes else x._placement
    return None


def batched(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The function on the rank's samples; whole tensors among the arguments are weights."""
    if not args:
        return NotImplemented
    x = args[0]
    placement = _rows_first(x)
    name = func.__name__
    # `boolean_dispatch` hides the name of F.max_pool2d and its kind.
    ndim = _BATCHED.get(name, _NAMES.get(func, 0))
    if placement is None or (ndim and x.dim() != ndim):
        return NotImplemented
    if name == "grid_sample" and any(type(v) is torch.Tensor for v in (*args, *kwargs.values())):
        return NotImplemented

    def local(value: Any) -> Any:
        if type(value) is GlobalTensor:
            # Only grids go with the samples; a sharded weight is not this rank's weight.
            own = value is x or (name == "grid_sample" and value._placement == placement)
            return value._local if own else NotImplemented
        return collectives.broadcast(value) if isinstance(value, torch.Tensor) else value

    new_args = [local(a) for a in args]
    new_kwargs = {key: local(value) for key, value in kwargs.items()}
    if any(a is NotImplemented for a in (*new_args, *new_kwargs.values())):
        return NotImplemented
    result = func(*new_args, **new_kwargs)
    if isinstance(result, torch.Tensor):
        return wrap_at(result, placement, 0)
    return tuple(wrap_at(r, placement, 0) for r in result)


_NAMES: dict[Any, int] = {}


def interpolate(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`F.interpolate` / `F.upsample`: always batched."""
    return batched(func, args, kwargs) if args and args[0].dim() >= 3 else NotImplemented


def pad(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`F.pad` that leaves the rows alone."""
    widths = args[1] if len(args) > 1 else kwargs.get("pad", ())
    if not isinstance(widths, (tuple, list)) or len(widths) // 2 >= args[0].dim():
        return NotImplemented
    mode = args[2] if len(args) > 2 else kwargs.get("mode", "constant")
    return batched(func, args, kwargs) if mode == "constant" else NotImplemented


def layer_norm(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`F.layer_norm` over trailing dimensions."""
    shape = args[1] if len(args) > 1 else kwargs.get("normalized_shape", ())
    return batched(func, args, kwargs) if args and args[0].dim() > len(shape) else NotImplemented


def one_hot(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`F.one_hot` with a given number of classes."""
    classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    return batched(func, args, kwargs) if args and classes > 0 else NotImplemented


def between_rows(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`cosine_similarity` and `pairwise_distance` of two tensors with the same rows, over another dimension."""
    if len(args) < 2 or not (type(args[0]) is type(args[1]) is GlobalTensor) or args[0].shape != args[1].shape:
        return NotImplemented
    first, second = args[:2]
    placement = _rows_first(first)
    if placement is None or second._placement != placement or first.dim() < 2:
        return NotImplemented
    if func.__name__ == "cosine_similarity":
        dim = args[2] if len(args) > 2 else kwargs.get("dim", 1)
        if not isinstance(dim, int) or not -first.dim() <= dim < first.dim() or dim % first.dim() == 0:
            return NotImplemented
    return wrap_at(func(first._local, second._local, *args[2:], **kwargs), placement, 0)


def dropout(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Dropout that is switched off is the identity; else the fallback draws for the whole batch."""
    training = args[2] if len(args) > 2 else kwargs.get("training", True)
    x = args[0] if args else None
    if training or type(x) is not GlobalTensor or not isinstance(x._placement, Shard) or len(args) > 3:
        return NotImplemented
    return wrap_at(func(x._local, *args[1:], **kwargs), x._placement, x._placement.dim)


def like(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`zeros_like` and its kind: sharded as the model."""
    x = args[0] if args else None
    if type(x) is not GlobalTensor or any(isinstance(a, torch.Tensor) for a in args[1:]):
        return NotImplemented
    if isinstance(x._placement, Shard):
        return wrap_at(func(x._local, *args[1:], **kwargs), x._placement, x._placement.dim)
    return func(x._local, *args[1:], **kwargs) if isinstance(x._placement, Partial) else NotImplemented


def random_like(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`rand_like` and its kind draw the whole tensor from the script's stream, as one device would."""
    x = args[0] if args else None
    if type(x) is not GlobalTensor or not isinstance(x._placement, Shard) or func.__name__ == "bernoulli":
        return NotImplemented
    whole = func(torch.empty(x.shape, dtype=x.dtype, device=x.device), *args[1:], **kwargs)
    return shard_whole(whole, x._placement.dim, x._placement.sizes)


def new(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`x.new_zeros(…)`: only dtype and device are taken from `x`; the result is whole."""
    if type(args[0]) is not GlobalTensor or any(type(a) is GlobalTensor for a in args[1:]):
        return NotImplemented
    return func(args[0]._local, *args[1:], **kwargs)


def stride(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Strides of the global tensor, laid out as the local one is."""
    x = args[0]
    if not isinstance(x._placement, Shard) or world.current().size == 1:
        return func(x._local, *args[1:], **kwargs)
    local = x._local.stride()
    order = sorted(range(x.dim()), key=lambda d: (local[d], -d))
    strides, step = [0] * x.dim(), 1
    for d in order:
        strides[d] = step if local[d] else 0
        step *= max(1, x.size(d)) if local[d] else 1
    if len(args) > 1 or kwargs:
        return strides[args[1] if len(args) > 1 else kwargs["dim"]]
    return tuple(strides)


def size_property(name: str) -> Rule:
    """The rule of a property that follows from the global shape."""

    def rule(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        x = args[0]
        if name == "nbytes":
            return numel_of(x._shape) * x._local.element_size()
        return x._shape if name == "shape" else len(x._shape)

    return rule


def as_the_piece(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What every piece says alike: dtype, device, layout."""
    return func(args[0]._local, *args[1:], **kwargs) if type(args[0]) is GlobalTensor else NotImplemented


def sizes(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The global shape and what follows from it."""
    x, name = args[0], func.__name__
    if name == "size":
        return x.size(*args[1:], **kwargs)
    if name in ("dim", "ndimension"):
        return len(x._shape)
    if name == "__len__":
        if not x._shape:
            raise TypeError("len() of a 0-d tensor")
        return x._shape[0]
    return numel_of(x._shape)


def install() -> None:
    """Register the rules."""
    register(batched, _BATCHED)
    for name, ndim in _BATCHED.items():
        if hasattr(F, name):
            _NAMES[getattr(F, name)] = ndim
        for variant in (f"_{name}", f"{name}_with_indices"):
            if hasattr(F, variant):
                _NAMES[getattr(F, variant)] = ndim
                register(batched, variant)
    register(interpolate, "interpolate upsample")
    register(pad, "pad")
    register(layer_norm, "layer_norm")
    register(one_hot, "one_hot")
    register(between_rows, "cosine_similarity pairwise_distance")
    register(dropout, "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout")
    register(like, _LIKE)
    register(random_like, _RANDOM_LIKE)
    register(new, _NEW)
    register(stride, "stride")
    register(sizes, "size dim numel nelement ndimension __len__")
    register(
        as_the_piece,
        "is_contiguous is_conj is_neg is_inference is_pinned element_size is_floating_point is_complex is_signed "
        "get_device",
    )
