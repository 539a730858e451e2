"""Regions: a module called with a sharded batch runs on the rank's rows, with plain local tensors.

Inside, everything is as fast as without Samestep. The border does three things: it takes the local pieces in and
makes global tensors of what comes out; it changes the units of gradients (inside they are N times the true ones,
see `samestep.parallel.reducer`); and it lets the module draw its random numbers from a stream of the rank's own.

Whether a module may be run so is decided by `samestep.parallel.check` at its first call. No rank ever runs a module
on zero rows (much code cannot: `x.view(x.size(0), -1)`): rows are dealt out anew if a rank has none, and a batch of
fewer rows than ranks is computed whole by all.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import nn

from samestep import numerics, torch_private, world
from samestep.globalview import collectives
from samestep.globalview.placement import Shard, Whole
from samestep.globalview.tensor import WHERE, GlobalTensor, node_name, shard_whole
from samestep.ledger import LEDGER
from samestep.nest import map_tensors, tensors
from samestep.notice import notice_once
from samestep.parallel import agreement, devices, exact_random, streams
from samestep.parallel.attributes import Changes
from samestep.parallel.bucket import Bucket
from samestep.parallel.check import Plan, decide
from samestep.parallel.entering import ways
from samestep.parallel.exact_random import Call
from samestep.parallel.reducer import REDUCER
from samestep.parallel.survey import MANY_FORMS, form_of, survey
from samestep.parallel.visit import Visit

_original_call = nn.Module.__call__


#: So many structures of a module (its parts replaced, its modes changed) are remembered with their plans.
MOST_STRUCTURES = 64


class _Known:
    """What is remembered about a module: its plans by structure and by the form of the call, and its buckets."""

    def __init__(self, module: nn.Module) -> None:
        self._plans: dict[Any, dict[Any, Plan]] = {}
        self.signature: Any = None
        self.buckets: list[Bucket] = []
        # A wrapper is never a region itself: it deals out rows and gathers, its module is the region.
        wrapper = isinstance(module, nn.DataParallel) or "_samestep_wrapper" in module.__dict__
        self.has_state = not wrapper and any(True for _ in (*module.parameters(), *module.buffers()))
        self.agreed = False
        self.changes = Changes()
        self.needs_true_gradients = False

    def plans(self, structure: Any) -> dict[Any, Plan]:
        """The plans for a structure; that of the oldest is forgotten when there are too many, on every rank alike."""
        found = self._plans.get(structure)
        if found is None:
            if len(self._plans) >= MOST_STRUCTURES:
                self._plans.pop(next(iter(self._plans)))
            found = self._plans[structure] = {}
        return found


_KNOWN: MutableMapping[nn.Module, _Known] = torch_private.by_identity()
#: Modules called while another is opened get names relative to it in the report.
_NAMES: MutableMapping[nn.Module, str] = torch_private.by_identity()


def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Takes the place of `nn.Module.__call__`."""
    if WHERE.region:
        return _original_call(module, *args, **kwargs)
    lead = _lead(args, kwargs)
    if lead is not None and torch_private.inside_transform():  # of torch.func: nothing may be exchanged within
        args, kwargs = map_tensors(_made_whole, (args, kwargs))
        return _original_call(module, *args, **kwargs)
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


def _made_whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.whole("torch.func") if type(tensor) is GlobalTensor else tensor


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
    if seen.hooked:
        return _open(module, args, kwargs, Plan(False, "hooks of the script's look inside"))
    if torch.is_grad_enabled() and not _refresh_buckets(seen.parameters, known):
        return _open(module, args, kwargs, Plan(False, "its parameters are computed by the script or have hooks"))
    plans = known.plans((seen.structure, known.changes.key(seen.values)))
    coarse = len(plans) >= MANY_FORMS
    rows = placement.total
    form = (form_of(args, rows, coarse), form_of(kwargs, rows, coarse))
    plan = plans.get(form)
    if plan is None:
        plan = plans[form] = _decided(module, args, kwargs, placement, seen.parameters)
        if not plan.split:
            known.changes.was_opened()
            return _open(module, args, kwargs, plan)
        _record(module, plan)
    if not plan.split:
        return _open(module, args, kwargs)
    return _split(module, known, plan, args, kwargs, placement)


def _decided(module: nn.Module, args: Any, kwargs: Any, placement: Shard, parameters: list[nn.Parameter]) -> Plan:
    """The plan for calls like this one: the first way to take the arguments that the check agrees to."""
    devices.refuse_several(name_of(module), parameters)
    agreement.require_equal_arguments((args, kwargs), name_of(module))
    plans = []
    for way in ways((args, kwargs), placement):
        plan = decide(module, args, kwargs, placement, way)
        plan = exact_random.confirmed(plan, Call(module, args, kwargs, placement, way))
        if plan.split:
            return plan
        plans.append(plan)
    return plans[0]


def _record(module: nn.Module, plan: Plan) -> None:
    """Note the plan for the report, and say once if results will differ as from another seed."""
    LEDGER.regions[f"{name_of(module)} ({_mode(module)})"] = plan.describe()
    if plan.split and plan.draws and not numerics.chosen().exact_random:
        notice_once(
            "random numbers inside modules (dropout, noise) are each device's own for its rows: as one device would "
            "draw with another seed. `--exact-random` draws those of one device, slower."
        )


def _mode(module: nn.Module) -> str:
    return "training" if module.training else "evaluation"


def _open(module: nn.Module, args: Any, kwargs: Any, plan: Plan | None = None) -> Any:
    """Run the module's `forward` at script level; its children are asked in turn.

    By a new `plan` it is said aloud, once, if it is a module that the script called; and only when the forward is
    through, as one that cannot be, on one device either, has its own message.
    """
    if plan is not None:
        _record(module, plan)
    _name_children(module)
    output = _original_call(module, *args, **kwargs)
    if plan is not None and module not in _NAMES:
        notice_once(f"{name_of(module)} is opened: {plan.reason}. Its parts are split; `--explain` shows how.")
    return output


def _split(module: nn.Module, known: _Known, plan: Plan, args: Any, kwargs: Any, placement: Shard) -> Any:
    buckets = known.buckets
    local_args, local_kwargs = plan.way((args, kwargs), placement, crossed=lambda: _gradient_goes_in(buckets))
    LEDGER.region_calls += 1
    learn = exact_random.learner(plan, Call(module, args, kwargs, placement, plan.way))
    output = Visit(placement, plan.drawn, learn).run(_original_call, module, *local_args, **local_kwargs)
    return leave(output, plan, placement, buckets, name_of(module))


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
            tensor = collectives.apply(collectives.CrossOut, tensor, 1, lambda: _gradient_goes_in(buckets))
        shape = list(tensor.shape)
        shape[place.dim] = sum(sizes)
        result = GlobalTensor(tensor, place, shape)
        result._origin = origin
        return result

    given = map_tensors(give, output)
    if any(layout != plan.layouts[0] for layout in layouts):
        raise RuntimeError(f"{name} returned fewer tensors than at its first call; it cannot be split safely.")
    return given


def _gradient_goes_in(buckets: list[Bucket]) -> None:
    """Backward comes to a region, on every rank."""
    streams.keep_alike_in_backward()
    REDUCER.activate(buckets)


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
        _gradient_goes_in(ctx.buckets)
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
    autograd.gradient_goes_in = lambda parameter: _gradient_goes_in(REDUCER.together(parameter))
