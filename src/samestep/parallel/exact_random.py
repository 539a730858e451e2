"""`--exact-random`: what a region draws is what one device would draw, number for number.

How a module's draws follow the rows of the batch is learned by running it on a few rows, once cut and once whole,
and looking at their shapes. Then it is checked like everything else: run cut, with its draws made for all rows, and
run whole, it must give the same outputs and leave the random streams at the same place. The draws are first replaced
by numbers that tell their position, so that a dropout that seldom drops cannot hide a wrong block. A module that does
not pass is opened; at the level of the script every draw is one device's.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from samestep import numerics, world
from samestep.errors import SamestepError
from samestep.globalview.placement import Shard
from samestep.globalview.tensor import WHERE
from samestep.nest import map_tensors, tensors
from samestep.parallel import batch_norm
from samestep.parallel.check import CHECK_ROWS, Layout, Plan, close, coarsest, samples
from samestep.parallel.drawing import Drawing
from samestep.parallel.draws import BOUNDARIES, Draw, Draws, Look, NotByRow, paired
from samestep.parallel.entering import Entering
from samestep.parallel.in_step import in_step
from samestep.parallel.restoring import restored
from samestep.parallel.streams import all_states, kept_streams, same_state, set_all_states


@dataclass(frozen=True)
class Call:
    """A call of a module from the script; `way` says how its arguments are taken into the region."""

    module: nn.Module
    args: Any
    kwargs: Any
    placement: Shard
    way: Entering


def confirmed(plan: Plan, call: Call) -> Plan:
    """The plan with what the module draws; or that it is opened, if its draws cannot be cut. Collective.

    Without `--exact-random` each rank draws for its own rows, but what is drawn for all rows at once must be the same
    on all ranks: such a module draws as with the option, as far as it can.
    """
    if not plan.split:
        return plan
    strict = numerics.chosen().exact_random
    if not plan.draws:
        return replace(plan, drawn=Draws()) if strict else plan
    found = _learned(call, plan.layouts, strict=strict)
    if isinstance(found, str):
        return Plan(False, found) if strict else plan
    return replace(plan, drawn=found) if strict or found.has_shared() else plan


def learner(plan: Plan, call: Call) -> Callable[[], None] | None:
    """What a call of a region does at a draw that is not known: run the module as at the beginning of this call."""
    if plan.drawn is None or not plan.drawn.strict:
        return None
    known, states = plan.drawn, all_states()

    def learn() -> None:
        # In the middle of the module: nothing of it may be noticed.
        with kept_streams():
            set_all_states(states)
            found = _learned(call, plan.layouts, strict=True)
        if isinstance(found, str):
            raise SamestepError(
                f"--exact-random: {type(call.module).__name__} draws random numbers in a part that did not run when "
                f"it was checked, and now: {found}. Run without --exact-random, or call the module in this way at "
                "its first call."
            )
        known.at.update(found.at)

    return learn


def _learned(call: Call, layouts: tuple[Layout, ...], *, strict: bool) -> Draws | str:
    """What the module draws, or why that cannot be cut into rows; alike on every rank."""
    few = Shard(call.placement.dim, tuple(min(CHECK_ROWS, n) for n in call.placement.sizes))
    found = _learned_from(call, few, layouts, strict)
    if isinstance(found, str) and few.sizes != call.placement.sizes:
        # Perhaps the module insists on its batch size: look at the whole batch instead.
        found = _learned_from(call, call.placement, layouts, strict)
    return found


def _learned_from(call: Call, few: Shard, layouts: tuple[Layout, ...], strict: bool) -> Draws | str:
    local, whole = samples(call.args, call.kwargs, call.placement, few, call.way)
    cut, full = _seen(call.module, local, Drawing(), inside=True), _seen(call.module, whole, Drawing(), inside=False)
    found = _paired(cut, full, few)
    mine = found if isinstance(found, str) else [draw for draws in found.at.values() for draw in draws]
    everyone = world.current().all_gather_objects(mine)
    reason: str | None = next((str(o) for o in everyone if isinstance(o, str)), None)
    if reason is None and any(o != everyone[0] for o in everyone):
        reason = "what it draws differs between the ranks"
    if reason is not None:
        return reason
    assert not isinstance(found, str)
    found.strict = strict
    if not strict and not found.has_shared():
        return found
    for marked in (True, False):
        cut = _seen(call.module, local, Drawing(few, found, marked=marked), inside=True)
        full = _seen(call.module, whole, Drawing(marked=marked), inside=False)
        everyone = world.current().all_gather_objects(_difference(cut, full, layouts, few, call.module))
        reason = next((str(o) for o in everyone if o is not None), None)
        if reason is not None:
            return reason
    return found


@dataclass
class _Seen:
    """One run: outputs, what was drawn, where the streams stood at the end; or the error that ended it."""

    outputs: list[torch.Tensor] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    states: tuple[Any, ...] = ()
    error: str | None = None


def _seen(module: nn.Module, arguments: Any, mode: Any, *, inside: bool) -> _Seen:
    """Run the module without a trace."""
    args, kwargs = map_tensors(lambda t: t.clone(), arguments)
    before, WHERE.region = WHERE.region, int(inside)
    quiet = contextlib.redirect_stdout(io.StringIO())
    try:
        with in_step(), kept_streams(), restored(module), batch_norm.always_global(), _unsaved(), quiet:
            with mode:
                output = _call(module, args, kwargs)
            return _Seen([t.detach() for t in tensors(output)], mode.looks, all_states())
    except Exception as error:
        return _Seen(error=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    finally:
        WHERE.region = before
        for generator, state in mode.generators.items():
            generator.set_state(state)


def _unsaved() -> Any:
    """Within: what autograd saves is not seen by hooks of the script's or of checkpointing."""
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


def _call(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return module(*args, **kwargs)


BOUNDARIES.add(_call.__code__)


def _paired(cut: _Seen, full: _Seen, few: Shard) -> Draws | str:
    error = cut.error or full.error
    if error is not None:
        return f"on a few rows there was {error}"
    if len(cut.looks) != len(full.looks):
        return "how often it draws depends on the number of rows"
    found: dict[Any, list[Draw]] = {}
    try:
        for part, whole in zip(cut.looks, full.looks, strict=True):
            found.setdefault(part.place, []).append(paired(part, whole, few.rows, few.total))
    except NotByRow as reason:
        return str(reason)
    return Draws(found)


def _difference(cut: _Seen, full: _Seen, layouts: tuple[Layout, ...], few: Shard, module: nn.Module) -> str | None:
    error = cut.error or full.error
    if error is not None:
        return f"with random numbers drawn for all rows there was {error}"
    if not (same_state(cut.states[0], full.states[0]) and repr(cut.states[1:]) == repr(full.states[1:])):
        return "how much it draws depends on the number of rows"
    if not len(cut.outputs) == len(full.outputs) == len(layouts):
        return "it returns another number of tensors when it draws"
    tolerance = coarsest([*module.parameters(), *module.buffers()])
    for part, whole, layout in zip(cut.outputs, full.outputs, layouts, strict=True):
        expected = whole
        if layout.kind == "rows":
            expected = whole.narrow(layout.dim, layout.per_row * few.offset, layout.per_row * few.rows)
        if part.shape != expected.shape or not close(part, expected, tolerance):
            return "random numbers drawn for all rows do not reach the rows that they are for"
    return None
