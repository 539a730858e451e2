"""Regions: a module called with a sharded batch runs on the rank's rows, with plain local tensors.

Inside, everything is as fast as without Samestep. The border does three things: it takes the local pieces in and
makes global tensors of what comes out; it changes the units of gradients (inside they are N times the true ones,
see `samestep.parallel.reducer`); and it lets the module draw its random numbers from a stream of the rank's own.

Whether a module may be run so is decided by `samestep.parallel.check` at its first call. No rank ever runs a module
on zero rows (much code cannot: `x.view(x.size(0), -1)`): rows are dealt out anew if a rank has none, and a batch of
fewer rows than ranks is computed whole by all.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from samestep import torch_private, world
from samestep.globalview import collectives
from samestep.globalview.placement import Shard, Whole
from samestep.globalview.tensor import WHERE, GlobalTensor, node_name, shard_whole
from samestep.ledger import LEDGER
from samestep.nest import map_tensors, tensors
from samestep.parallel import agreement
from samestep.parallel.check import Plan, decide
from samestep.parallel.reducer import REDUCER, Bucket
from samestep.parallel.survey import MANY_FORMS, form_of, survey
from samestep.parallel.visit import Visit

_original_call = nn.Module.__call__


class _Known:
    """What is remembered about a module: its plans by the form of the call, and its buckets."""

    def __init__(self, module: nn.Module) -> None:
        self.plans: dict[Any, Plan] = {}
        self.signature: Any = None
        self.buckets: list[Bucket] = []
        self.has_state = any(True for _ in module.parameters()) or any(True for _ in module.buffers())
        self.agreed = False
        self.needs_true_gradients = False


_KNOWN: weakref.WeakKeyDictionary[nn.Module, _Known] = weakref.WeakKeyDictionary()
#: Modules called while another is opened get names relative to it in the report.
_NAMES: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()


def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Takes the place of `nn.Module.__call__`."""
    if WHERE.region:
        return _original_call(module, *args, **kwargs)
    lead = _lead(args, kwargs)
    if lead is None or isinstance(module, nn.modules.loss._Loss):
        LEDGER.whole_calls += lead is None
        if lead is None:  # rows taken from a batch are whole: plain tensors are faster inside
            args, kwargs = map_tensors(_plain, (args, kwargs))
        return _original_call(module, *args, **kwargs)
    known = _KNOWN.get(module)
    if known is None:
        known = _KNOWN[module] = _Known(module)
    if not known.has_state:
        return _original_call(module, *args, **kwargs)
    return _run(module, known, args, kwargs, lead)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    whole = type(tensor) is GlobalTensor and isinstance(tensor._placement, Whole)
    return tensor.whole() if whole else tensor  # type: ignore[attr-defined]


def _lead(args: Any, kwargs: Any) -> GlobalTensor | None:
    """The first sharded argument; the others follow its rows."""
    for value in args:
        if type(value) is GlobalTensor and isinstance(value._placement, Shard):
            return value
    for tensor in tensors((args, kwargs)):
        if type(tensor) is GlobalTensor and isinstance(tensor._placement, Shard):
            return tensor
    return None


def _run(module: nn.Module, known: _Known, args: Any, kwargs: Any, lead: GlobalTensor) -> Any:
    placement = lead._placement
    assert isinstance(placement, Shard)
    if min(placement.sizes) == 0:
        return _dealt_anew(module, args, kwargs, placement)
    if not known.agreed:
        if any(isinstance(p, nn.UninitializedParameter) for p in module.parameters()):
            return _open(module, args, kwargs)  # lazy modules learn their shapes from the global ones
        agreement.make_equal(module, name_of(module))
        known.agreed = True
    seen = survey(module)
    if seen.hooked or (torch.is_grad_enabled() and not _refresh_buckets(seen.parameters, known)):
        LEDGER.regions[f"{name_of(module)} ({_mode(module)})"] = "opened: hooks of the script's look inside"
        return _open(module, args, kwargs)
    coarse = len(known.plans) >= MANY_FORMS
    form = (seen.structure, form_of(args, coarse), form_of(kwargs, coarse))
    plan = known.plans.get(form)
    if plan is None:
        plan = decide(module, args, kwargs, placement, lambda nest, place: enter(nest, place, detached=True))
        known.plans[form] = plan
        LEDGER.regions[f"{name_of(module)} ({_mode(module)})"] = plan.describe()
    if not plan.split:
        return _open(module, args, kwargs)
    return _split(module, known, plan, args, kwargs, placement)


def _mode(module: nn.Module) -> str:
    return "training" if module.training else "evaluation"


def _open(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """Run the module's `forward` at script level; its children are asked in turn."""
    _name_children(module)
    return _original_call(module, *args, **kwargs)


def _split(module: nn.Module, known: _Known, plan: Plan, args: Any, kwargs: Any, placement: Shard) -> Any:
    local_args, local_kwargs = enter((args, kwargs), placement)
    LEDGER.region_calls += 1
    output = Visit(placement).run(_original_call, module, *local_args, **local_kwargs)
    return leave(output, plan, placement, known.buckets, name_of(module))


def _refresh_buckets(parameters: list[nn.Parameter], known: _Known) -> bool:
    """Register parameters that are new or newly trainable; False if one needs its true gradient during backward.

    A parameter that is itself computed (`functional_call`), or that has a hook of the script's, must not meet a
    gradient of one rank's rows in the region's units. Its module is opened instead.
    """
    signature = [(id(p), p.requires_grad, torch_private.hook_count(p)) for p in parameters]
    if signature != known.signature:
        known.needs_true_gradients = any(_is_watched(p) for p in parameters)
        known.buckets = [] if known.needs_true_gradients else REDUCER.register(parameters)
        known.signature = [(id(p), p.requires_grad, torch_private.hook_count(p)) for p in parameters]
    return not known.needs_true_gradients


def _is_watched(parameter: torch.Tensor) -> bool:
    if not parameter.requires_grad:
        return False
    own_hooks = 1 if REDUCER.owns(parameter) else 0
    return not parameter.is_leaf or torch_private.hook_count(parameter) > own_hooks


def _dealt_anew(module: nn.Module, args: Any, kwargs: Any, placement: Shard) -> Any:
    """Some rank has no row: deal the rows out evenly, or compute the few there are on every rank."""
    rows = sum(placement.sizes)
    here = world.current()

    def deal(tensor: torch.Tensor) -> torch.Tensor:
        if type(tensor) is not GlobalTensor:
            return tensor
        same = isinstance(tensor._placement, Shard) and tensor._placement.total == rows
        whole = tensor.whole("rows dealt out anew")
        if rows < here.size or not same:
            return whole
        return shard_whole(whole, tensor._placement.dim, here.split(rows))  # type: ignore[attr-defined]

    args, kwargs = map_tensors(deal, (args, kwargs))
    if rows < here.size:
        LEDGER.whole_batches["fewer rows than ranks"] += 1
    return module(*args, **kwargs)


# ---------------------------------------------------------------------- the border
def enter(nest: Any, placement: Shard, *, detached: bool = False) -> Any:
    """Arguments as the region sees them: plain tensors, the batch's ones cut to the rank's rows."""
    rows = sum(placement.sizes)
    tracking = torch.is_grad_enabled() and not detached

    def cut_in(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        local = collectives.cut(tensor, Shard(dim, placement.sizes), view=True)
        return collectives.apply(collectives.CrossIn, local, 1) if tracking and local.requires_grad else local

    def take(tensor: torch.Tensor) -> torch.Tensor:
        if type(tensor) is GlobalTensor:
            p = tensor._placement
            if isinstance(p, Shard) and p.sizes == placement.sizes:
                local = tensor._local
                return collectives.apply(collectives.CrossIn, local, 1) if tracking and local.requires_grad else local
            tensor = tensor.whole("argument of a module")
            if isinstance(p, Shard) and p.total == rows:  # the same rows, dealt otherwise
                return cut_in(tensor, p.dim)
        if tensor.dim() and tensor.size(0) == rows and not isinstance(tensor, nn.Parameter):
            return cut_in(tensor, 0)
        return collectives.apply(collectives.WholeIn, tensor) if tracking and tensor.requires_grad else tensor

    return map_tensors(take, nest)


def leave(output: Any, plan: Plan, placement: Shard, buckets: list[Bucket], name: str) -> Any:
    """The region's outputs as the script sees them."""
    layouts = iter(plan.layouts)

    def give(tensor: torch.Tensor) -> torch.Tensor:
        layout = next(layouts, None)
        if layout is None:
            raise RuntimeError(f"{name} returned more tensors than at its first call; it cannot be split safely.")
        if layout.kind == "constant":
            # A parameter itself stays itself: its gradient from outside is whole, and averages to itself.
            if not tensor.is_leaf and tensor.requires_grad and torch.is_grad_enabled():
                return collectives.apply(_LeaveConstant, tensor, buckets)
            return tensor
        sizes = placement.sizes if layout.per_row == 1 else tuple(n * layout.per_row for n in placement.sizes)
        place = Shard(layout.dim, sizes)
        if tensor.dim() <= place.dim or tensor.size(place.dim) != place.rows:
            raise RuntimeError(
                f"{name} returned a tensor of shape {tuple(tensor.shape)} for {placement.rows} rows, unlike at its "
                f"first call, when it had {layout.per_row} row(s) each in dimension {layout.dim}."
            )
        origin = node_name(tensor)
        if tensor.requires_grad and torch.is_grad_enabled():
            tensor = collectives.apply(collectives.CrossOut, tensor, 1, lambda: REDUCER.activate(buckets))
        shape = list(tensor.shape)
        shape[place.dim] = sum(sizes)
        result = GlobalTensor(tensor, place, shape)
        result._origin = origin
        return result

    return map_tensors(give, output)


class _LeaveConstant(torch.autograd.Function):
    """A tensor that does not depend on the batch (a returned parameter): whole outside, in ×N units inside.

    Its gradient outside is whole on every rank, and averaging it over the ranks gives itself: no factor.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, buckets: list[Bucket]) -> torch.Tensor:
        ctx.buckets = buckets
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        REDUCER.activate(ctx.buckets)
        return grad, None


# ---------------------------------------------------------------------- names
def name_of(module: nn.Module) -> str:
    """How messages call a module: its path below the module that the script called, and its class."""
    kind = type(module).__name__
    path = _NAMES.get(module)
    return f"{path} ({kind})" if path else kind


def _name_children(module: nn.Module) -> None:
    above = _NAMES.get(module) or type(module).__name__
    for name, child in module.named_children():
        if child not in _NAMES:
            _NAMES[child] = f"{above}.{name}"


def install() -> None:
    """Let modules called with global tensors be regions."""
    from samestep.globalview import autograd

    nn.Module.__call__ = call  # type: ignore[method-assign]
    autograd.takes_region_gradients = REDUCER.owns
