"""A module is checked before it is trusted: does it treat the rows of a batch one by one?

At its first call (in training and in evaluation mode) the module is run on a few rows per rank, once cut, each rank
on its own rows, and once whole, every rank on all of them, with random operations made deterministic and everything
that the module changed put back. If each rank's outputs are its rows of the whole outputs, the module is split from
then on. If not (a loss over the batch inside `forward`, a mean over the batch, a scalar output), it is *opened*: its
`forward` runs at script level and its children are asked in turn.

A scalar output always opens the module: that few rows agree with a mean or a sum proves nothing about batches whose
rows have different numbers of tokens.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from samestep import numerics, world
from samestep.globalview.placement import Shard
from samestep.globalview.tensor import WHERE
from samestep.ledger import LEDGER
from samestep.nest import map_tensors, opaque, skeleton, tensors
from samestep.parallel import batch_norm
from samestep.parallel.draws import Draws
from samestep.parallel.entering import ANY_WAY, Entering
from samestep.parallel.in_step import in_step
from samestep.parallel.restoring import restored, without_closed_gates
from samestep.parallel.stillness import deterministic_random

#: Rows per rank in the check: two, so that an operation over the batch has something to couple.
CHECK_ROWS = 2
#: Rows per rank when it is looked at again, because some couplings show only among many.
MORE_ROWS = 16
_OUT_OF_MEMORY = "OutOfMemoryError"


@dataclass(frozen=True)
class Layout:
    """Where an output tensor keeps the rows: `rows` (dimension, and how many entries per row) or `constant`."""

    kind: str
    dim: int = 0
    per_row: int = 1


@dataclass(frozen=True)
class Plan:
    """What was decided about a module in one mode."""

    split: bool
    reason: str
    layouts: tuple[Layout, ...] = ()
    #: Whether the module drew random numbers while it was checked.
    draws: bool = False
    #: With `--exact-random`: how what it draws follows the rows.
    drawn: Draws | None = None
    #: How its arguments are taken into the region.
    way: Entering = ANY_WAY

    def describe(self) -> str:
        """One phrase for the report."""
        return "split" if self.split else f"opened: {self.reason}"


@dataclass(frozen=True)
class _Fits:
    """For each output tensor the layouts that fit on one rank, and whether the module drew random numbers there."""

    layouts: list[list[Layout]]
    draws: bool


def decide(module: nn.Module, args: Any, kwargs: Any, placement: Shard, way: Entering) -> Plan:
    """Run the check; the same plan on every rank. `way` gives the arguments as the region would see them."""
    few = Shard(placement.dim, tuple(min(CHECK_ROWS, n) for n in placement.sizes))
    # Every rank's outcome is looked at before anything is decided: all must go the same way.
    everyone = world.current().all_gather_objects(_try_rows(module, args, kwargs, placement, few, way))
    if any(isinstance(o, str) for o in everyone) and few.sizes != placement.sizes:
        # Perhaps the module insists on its batch size: look at the whole batch instead.
        everyone = world.current().all_gather_objects(_try_rows(module, args, kwargs, placement, placement, way))
    reasons = [o for o in everyone if isinstance(o, str)]
    if reasons:
        return Plan(False, reasons[0])
    layouts = _agreed([o.layouts for o in everyone if isinstance(o, _Fits)])
    if layouts is None:
        return Plan(False, "its outputs do not keep the rows in one dimension")
    draws = any(isinstance(o, _Fits) and o.draws for o in everyone)
    reason = _on_more_rows(module, args, kwargs, placement, few, way)
    return Plan(True, "", layouts, draws, way=way) if reason is None else Plan(False, reason)


def _on_more_rows(module: nn.Module, args: Any, kwargs: Any, placement: Shard, few: Shard, way: Entering) -> str | None:
    """Why more rows than a few cannot be cut: a capacity, the k of a topk, may let few rows pass one by one."""
    more = Shard(placement.dim, tuple(min(MORE_ROWS, n) for n in placement.sizes))
    if more.sizes == few.sizes:
        return None
    everyone = world.current().all_gather_objects(_try_rows(module, args, kwargs, placement, more, way))
    reasons = [o for o in everyone if isinstance(o, str)]
    if any(_OUT_OF_MEMORY in reason for reason in reasons):
        return None  # one device holds the rows of all here; what the few have shown must do
    return reasons[0] if reasons else None


def _try_rows(module: nn.Module, args: Any, kwargs: Any, placement: Shard, few: Shard, way: Entering) -> _Fits | str:
    """What fits on this rank; or why the module cannot be split."""
    local, whole = samples(args, kwargs, placement, few, way)
    cut = _quiet_run(module, local, inside=True)
    full = _quiet_run(module, whole, inside=False)
    # All ranks must go the same way from here, whatever happened on this one.
    errors = world.current().all_gather_objects(cut.error or full.error)
    first = min((e for e in errors if e), key=lambda e: e.startswith("PeerEnded"), default=None)
    if first is not None:
        return f"on a few rows there was {first}"
    if cut.norms != full.norms:
        return "a batch norm in it does not see each row of the batch once"
    if cut.python != full.python:
        return "how much it draws from Python's or NumPy's random numbers depends on the number of rows"
    least = coarsest([*module.parameters(), *module.buffers(), *tensors(local)])
    for name, buffer in full.buffers.items():
        mine = cut.buffers.get(name)
        if mine is not None and not (buffer.shape == mine.shape and close(mine, buffer, least)):
            return f"its buffer `{name}` takes in the whole batch"
    for name in (*full.changed, *cut.changed):
        mine, all_ = cut.changed.get(name), full.changed.get(name)
        if mine is None or all_ is None or not (all_.shape == mine.shape and close(mine, all_, least)):
            return f"it keeps in its attribute `{name}` what depends on the batch"
    if skeleton(cut.output) != skeleton(full.output):
        return "what it returns besides tensors depends on the number of rows"
    for mine, all_ in zip(opaque(cut.output), opaque(full.output), strict=True):
        # A cache of Hugging Face's goes back into the module, and there it holds the rank's rows.
        if mine is not all_ and not type(mine).__module__.startswith("transformers."):
            return f"it returns an object ({type(mine).__name__}) that may hold rows of the batch"
    fitting = _compare(_detached(cut.output), _detached(full.output), few, least)
    return fitting if isinstance(fitting, str) else _Fits(fitting, cut.draws or full.draws)


def _detached(output: Any) -> list[torch.Tensor]:
    return [t.detach() for t in tensors(output)]


def samples(args: Any, kwargs: Any, placement: Shard, few: Shard, way: Entering) -> tuple[Any, Any]:
    """The check's arguments: a few rows of this rank, and the same rows of all ranks."""
    here = world.current()
    mine = few.sizes[here.rank]

    dims = [way.row_dim(t, placement) for t in tensors((args, kwargs))]
    order = iter(dims)

    def shorten(tensor: torch.Tensor) -> torch.Tensor:
        dim = next(order)
        tensor = tensor.detach()
        return tensor if dim is None else tensor.narrow(dim, 0, mine).clone()

    def lengthen(tensor: torch.Tensor) -> torch.Tensor:
        dim = next(order)
        return tensor.clone() if dim is None else here.all_gather(tensor, dim, few.sizes)

    local = map_tensors(shorten, way.detached((args, kwargs), placement))
    order = iter(dims)
    return local, map_tensors(lengthen, local)


@dataclass
class _Ran:
    """One run of the check: outputs, an exception or another obstacle as a short text, buffers, whether it drew.

    `norms` has the values per channel that each batch norm saw, `python` where Python's and NumPy's streams stood,
    `changed` the tensors that it keeps in attributes.
    """

    output: Any = None
    error: str | None = None
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    draws: bool = False
    norms: list[int] = field(default_factory=list)
    python: bytes = b""
    changed: dict[str, torch.Tensor] = field(default_factory=dict)


def _quiet_run(module: nn.Module, arguments: Any, *, inside: bool) -> _Ran:
    """Run the module without a trace."""
    args, kwargs = map_tensors(lambda t: t.clone(), arguments)
    calls = LEDGER.whole_calls
    WHERE.region += inside
    try:
        quiet = contextlib.redirect_stdout(io.StringIO())
        with (
            in_step(),
            torch.no_grad(),
            without_closed_gates(module),
            restored(module) as changes,
            deterministic_random(module) as seen,
            batch_norm.counted() as norms,
            quiet,
        ):
            output = module(*args, **kwargs)
            buffers = {name: b.detach().clone() for name, b in module.named_buffers()}
        if seen.reads:
            return _Ran(error="a number that it reads off its batch, which may decide what it does")
        if changes.kept:
            return _Ran(error=f"an attribute `{changes.kept[0]}` that it keeps for later")
        if seen.generator and not numerics.chosen().exact_random:
            return _Ran(error="random numbers from a generator of its own, which is alike on all ranks")
        return _Ran(output, None, buffers, seen.draws, norms, seen.python, changes.tensors)
    except Exception as error:
        return _Ran(error=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    finally:
        WHERE.region -= inside
        LEDGER.whole_calls = calls


# ---------------------------------------------------------------------- comparing
def _compare(cut: list[torch.Tensor], whole: list[torch.Tensor], few: Shard, least: float) -> list[list[Layout]] | str:
    if not whole:
        return "it returns no tensor"
    if len(cut) != len(whole):
        return "it returns another number of tensors for fewer rows"
    fitting = []
    for position, (part, full) in enumerate(zip(cut, whole, strict=True)):
        layouts = _fitting(part, full, few, least)
        if not layouts:
            where = f"output {position}" if len(whole) > 1 else "its output"
            if full.dim() == 0:
                return f"{where} is a scalar over the batch"
            return f"{where} is not made row by row"
        fitting.append(layouts)
    return fitting


def _fitting(part: torch.Tensor, full: torch.Tensor, few: Shard, least: float) -> list[Layout]:
    if part.dim() != full.dim() or part.dtype != full.dtype:
        return []
    here = world.current()
    total, mine = sum(few.sizes), few.sizes[here.rank]
    found = []
    # The dimension of the input's rows first, then the others.
    for dim in sorted(range(full.dim()), key=lambda d: d != few.dim):
        per_row, rest = divmod(full.size(dim), total)
        if rest or per_row == 0 or part.size(dim) != per_row * mine:
            continue
        if part.shape[:dim] != full.shape[:dim] or part.shape[dim + 1 :] != full.shape[dim + 1 :]:
            continue
        if close(part, full.narrow(dim, per_row * few.offset, per_row * mine), least):
            found.append(Layout("rows", dim, per_row))
    if part.shape == full.shape and full.dim() > 0 and close(part, full, least):
        found.append(Layout("constant"))
    return found


_TOLERANCE = {
    torch.float64: 1e-8,
    torch.complex128: 1e-8,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 5e-2,
}


def coarsest(values: list[torch.Tensor]) -> float:
    """The tolerance of the least precise dtype that goes in: a double computed from floats is no better than they."""
    return max((_TOLERANCE.get(v.dtype, 0.0) for v in values), default=0.0)


def close(a: torch.Tensor, b: torch.Tensor, least: float) -> bool:
    """Whether two tensors are equal to rounding, `least` being the coarsest tolerance of what they come from."""
    if a.layout is not torch.strided:
        return False
    if not (a.dtype.is_floating_point or a.dtype.is_complex):
        return torch.equal(a, b)
    if b.numel() and bool(b.isnan().all()):
        return False  # proves nothing
    tolerance = max(least, _TOLERANCE.get(a.dtype, 1e-4))
    finite = b[torch.isfinite(b)] if b.numel() else b
    scale = float(finite.abs().max()) if finite.numel() else 1.0
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _agreed(everyone: list[list[list[Layout]]]) -> tuple[Layout, ...] | None:
    """For each output the first layout that fits on every rank."""
    if len({len(layouts) for layouts in everyone}) != 1:
        return None
    chosen = []
    for position in range(len(everyone[0])):
        common = [x for x in everyone[0][position] if all(x in rank[position] for rank in everyone)]
        if not common:
            return None
        chosen.append(common[0])
    return tuple(chosen)
