"""The losses of `torch.nn.functional` with the exact denominators of the global batch.

Each rank adds up its own rows; the mean's denominator (rows, elements, tokens that are not ignored, class weights)
is that of the whole batch. The result is Partial: `backward()` needs no communication.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
import torch.nn.functional as F

from samestep import torch_private, world
from samestep.globalview import collectives
from samestep.globalview.census import census_of
from samestep.globalview.means import mean_of
from samestep.globalview.placement import Shard
from samestep.globalview.tensor import RULES, GlobalTensor, made_whole, node_name, numel_of, partial

#: Mean over every element of the (equally shaped) input and target.
_ELEMENTWISE = (
    "binary_cross_entropy binary_cross_entropy_with_logits mse_loss l1_loss smooth_l1_loss huber_loss kl_div "
    "soft_margin_loss hinge_embedding_loss poisson_nll_loss margin_ranking_loss"
)
_WEIGHTED_MEANS = (F.mse_loss, F.huber_loss)
#: Mean over the rows.
_ROWWISE = (
    "cosine_embedding_loss triplet_margin_loss multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss"
)
#: Arguments that hold one value per class, not per row.
_PER_CLASS = {"weight": ("cross_entropy", "nll_loss", "multi_margin_loss", "multilabel_soft_margin_loss")}

_PARAMETERS: dict[Any, list[tuple[str, Any]]] = {}


def _arguments(func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    if func not in _PARAMETERS:
        _PARAMETERS[func] = [(p.name, p.default) for p in inspect.signature(func).parameters.values()]
    bound = {name: default for name, default in _PARAMETERS[func] if default is not inspect.Parameter.empty}
    bound.update(zip((name for name, _ in _PARAMETERS[func]), args, strict=False))
    bound.update(kwargs)
    return bound


def _lead(bound: dict[str, Any]) -> GlobalTensor | None:
    for value in bound.values():
        if type(value) is GlobalTensor and isinstance(value._placement, Shard) and value._placement.dim == 0:
            return value
    return None


def _localize(func: Any, bound: dict[str, Any], placement: Shard) -> dict[str, Any] | None:
    """Arguments as this rank's rows; per-class tensors as they are."""
    rows = placement.total
    local = dict(bound)
    for name, value in bound.items():
        if not isinstance(value, torch.Tensor):
            continue
        if name == "pos_weight" or (func.__name__ in _PER_CLASS.get(name, ()) and value.dim() <= 1):
            local[name] = collectives.broadcast(value.whole("weights") if type(value) is GlobalTensor else value)
            continue
        if type(value) is GlobalTensor and value._placement == placement:
            local[name] = value._local
            continue
        if value.dim() == 0 or value.size(0) != rows:
            return None
        plain = value.whole(func.__name__) if type(value) is GlobalTensor else value
        local[name] = collectives.cut(plain, placement, view=True)
    return local


def _prepare(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    bound = _arguments(func, args, kwargs)
    lead = _lead(bound)
    if lead is None or bound.get("size_average") is not None or bound.get("reduce") is not None:
        return None
    if bound["reduction"] not in ("mean", "sum", "none", "batchmean"):
        return None
    placement = lead._placement
    assert isinstance(placement, Shard)
    if 0 in placement.sizes:
        return None
    local = _localize(func, bound, placement)
    return None if local is None else (bound, lead, placement, local)


def _finish(func: Any, local: dict[str, Any], reduction: str, placement: Shard, count: Any) -> Any:
    """`count` is called only for means; it gives the global denominator."""
    if reduction == "none":
        result = func(**{**local, "reduction": "none"})
        shape = list(result.shape)
        if not shape or shape[0] != placement.rows:
            return NotImplemented
        shape[0] = placement.total
        return GlobalTensor(result, placement.at(0), shape)
    total = func(**{**local, "reduction": "sum"})
    if reduction == "sum":
        return partial(total, origin=node_name(total))
    denominator = count()
    return partial(total / denominator, (total.detach(), denominator), node_name(total))


#: Reductions as torch's C++ functions number them.
_SUM = 2


def _usual_pair(args: Any, kwargs: dict[str, Any]) -> tuple[GlobalTensor, GlobalTensor] | None:
    """Scores and target of the usual call: both sharded alike by rows, a mean, nothing else asked for."""
    if len(args) != 2 or kwargs.get("reduction", "mean") != "mean" or kwargs.get("weight") is not None:
        return None
    scores, target = args
    if type(scores) is not GlobalTensor or type(target) is not GlobalTensor:
        return None
    placement = scores._placement
    if type(placement) is not Shard or placement.dim or not placement.full or target._placement is not placement:
        return None
    if scores._local.dtype not in (torch.float32, torch.float64):
        return None
    return None if kwargs.get("size_average") is not None or kwargs.get("reduce") is not None else (scores, target)


def mean_squared_error(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`F.mse_loss`."""
    compute, pair = torch_private.mse_loss, _usual_pair(args, kwargs)
    if pair is None or compute is None:
        return elementwise(func, args, kwargs)
    scores, target = pair
    count = numel_of(scores._shape)
    if count == 0 or target._shape != scores._shape or target._local.dtype != scores._local.dtype:
        return elementwise(func, args, kwargs)
    return mean_of(compute(scores._local, target._local, _SUM), count, "MseLossBackward0")


def elementwise(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Losses whose mean is over all elements (or over rows of elements, `batchmean`)."""
    ready = _prepare(func, args, kwargs)
    if ready is None:
        return NotImplemented
    bound, lead, placement, local = ready
    shapes = {tuple(v.shape) for k, v in bound.items() if isinstance(v, torch.Tensor) and k != "pos_weight"}
    if func in _WEIGHTED_MEANS and bound.get("weight") is not None:
        return NotImplemented  # their mean divides by the sum of the weights
    per_class = bound.get("pos_weight")
    if per_class is not None and per_class.dim() >= lead.dim():
        return NotImplemented
    if len(shapes) != 1 or lead.numel() == 0 or lead._local.dtype in (torch.float16, torch.bfloat16):
        return NotImplemented
    if bound["reduction"] == "batchmean":
        if func.__name__ != "kl_div":
            return NotImplemented
        return _finish(func, local, "mean", placement, lambda: lead.size(0))
    return _finish(func, local, bound["reduction"], placement, lambda: lead.numel())


def rowwise(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Losses with one value per row."""
    ready = _prepare(func, args, kwargs)
    if ready is None:
        return NotImplemented
    bound, lead, placement, local = ready
    tensors = [v for k, v in bound.items() if isinstance(v, torch.Tensor) and k != "weight"]
    if lead.size(0) == 0 or any(v.size(0) != lead.size(0) for v in tensors) or tensors[0].dim() != 2:
        return NotImplemented
    return _finish(func, local, bound["reduction"], placement, lambda: lead.size(0))


def cross_entropy(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`F.cross_entropy`: first the usual call, scores and class numbers of which it is known how many are ignored."""
    compute, pair = torch_private.cross_entropy, _usual_pair(args, kwargs)
    if pair is None or compute is None or kwargs.get("label_smoothing"):
        return classification(func, args, kwargs)
    scores, target = pair
    ignore = kwargs.get("ignore_index", -100)
    ignored = census_of(target, ignore) if scores._local.dim() >= 2 and target._local.dtype is torch.int64 else None
    if ignored is None or numel_of(scores._shape) == 0 or numel_of(target._shape) <= ignored:
        return classification(func, args, kwargs)
    total = compute(scores._local, target._local, None, _SUM, ignore, 0.0)
    return mean_of(total, numel_of(target._shape) - ignored, "NllLossBackward0")


def classification(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`cross_entropy` and `nll_loss`: class indices or probabilities, weights, ignored rows, label smoothing."""
    ready = _prepare(func, args, kwargs)
    if ready is None:
        return NotImplemented
    bound, _, placement, local = ready
    scores, target = bound["input"], bound["target"]
    if scores.dim() < 2 or scores.numel() == 0 or bound["reduction"] == "batchmean":
        return NotImplemented
    if scores.dtype in (torch.float16, torch.bfloat16) and bound["reduction"] == "mean":
        # A sum over the rows in half precision could overflow where the mean does not.
        local = {**local, "input": local["input"].float()}
        if local.get("weight") is not None:
            local["weight"] = local["weight"].float()
        result = _finish(func, local, "mean", placement, lambda: _denominator(bound, local, target))
        return partial(result._local.to(scores.dtype), result.kept_quotient())
    return _finish(func, local, bound["reduction"], placement, lambda: _denominator(bound, local, target))


def _denominator(bound: dict[str, Any], local: dict[str, Any], target: torch.Tensor) -> Any:
    scores, weight = bound["input"], local["weight"]
    if target.is_floating_point():  # class probabilities: nothing is ignored, weights do not enter the mean
        return scores.numel() // scores.size(1)
    ignore = bound["ignore_index"]
    if weight is None:
        ignored = census_of(target, ignore)
        if ignored is not None:
            return target.numel() - ignored if target.numel() > ignored else float("nan")
        count = (local["target"] != ignore).sum()
        return world.current().all_reduce_(count)
    kept = local["target"] != ignore
    used = weight.detach()[local["target"].masked_fill(~kept, 0)] * kept
    return world.current().all_reduce_(used.sum())


_torch_l1_loss = F.l1_loss


@functools.wraps(_torch_l1_loss)
def l1_loss(*args: Any, **kwargs: Any) -> Any:
    """Torch 2.13 forgets `weight` when it hands `l1_loss` to a tensor subclass: weighted ones are made whole here."""
    if _arguments(_torch_l1_loss, args, kwargs).get("weight") is not None:
        args, kwargs = made_whole((args, kwargs), "l1_loss")
    return _torch_l1_loss(*args, **kwargs)


def install() -> None:
    """Register the rules."""
    F.l1_loss = l1_loss
    for names, rule in ((_ELEMENTWISE, elementwise), (_ROWWISE, rowwise), ("cross_entropy nll_loss", classification)):
        for name in names.split():
            RULES[getattr(F, name)] = rule
    RULES[F.mse_loss] = mean_squared_error
    RULES[F.cross_entropy] = cross_entropy
