"""Conversions between placements, with their gradients (the table of DESIGN §2).

Each backward is written with the conversions themselves, so that gradients of gradients are right too:
gather and cut are adjoint to each other, and so are sum and broadcast.
"""

from __future__ import annotations

from typing import Any

import torch

from samestep import world
from samestep.globalview.placement import Shard


def apply(function: Any, *args: Any) -> torch.Tensor:
    """`function.apply(*args)` of an autograd function with one output, which torch leaves untyped."""
    result: torch.Tensor = function.apply(*args)
    return result


def _tracked(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, placement: Shard) -> torch.Tensor:
        ctx.placement = placement
        return world.current().all_gather(local, placement.dim, placement.sizes)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return cut(grad, ctx.placement), None


class _Cut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, placement: Shard) -> torch.Tensor:
        ctx.placement = placement
        return whole.narrow(placement.dim, placement.offset, placement.rows).clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return gather(grad, ctx.placement), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, numerator: torch.Tensor | None, denominator: Any) -> torch.Tensor:
        if numerator is None:
            return world.current().all_reduce_(world.fresh(local))
        return _ratio(numerator, denominator, local.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return broadcast(grad), None, None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor) -> torch.Tensor:
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return add_up(grad)


class _Divide(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor) -> torch.Tensor:
        return whole / world.current().size

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad


class CrossIn(torch.autograd.Function):
    """A value, times a factor, goes into a region; `crossed` is what `CrossOut` is given for the same region.

    Inside a region the gradient of a value is N times the true one. So the gradient of what went in with factor f
    comes out with factor f/N, and the gradient of what came out with factor f goes in with factor N·f. Gradients
    cross the border as values do, so this holds for gradients of gradients, of any order.
    """

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, factor: float, crossed: Any) -> torch.Tensor:
        ctx.factor, ctx.crossed = factor, crossed
        return value.clone() if factor == 1 else value * factor

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return apply(CrossOut, grad, ctx.factor / world.current().size, ctx.crossed), None, None


class CrossOut(torch.autograd.Function):
    """A value, times a factor, comes out of a region; `crossed`, if given, is called when its gradient goes in."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, factor: float, crossed: Any) -> torch.Tensor:
        ctx.factor, ctx.crossed = factor, crossed
        return value.clone() if factor == 1 else value * factor

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        if ctx.crossed is not None:
            ctx.crossed()
        return apply(CrossIn, grad, ctx.factor * world.current().size, ctx.crossed), None, None


class WholeIn(torch.autograd.Function):
    """A whole value goes into a region, the same on every rank; its gradient is the mean of the ranks'."""

    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, crossed: Any) -> torch.Tensor:
        ctx.crossed = crossed
        return whole.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return apply(AverageUnits, grad, ctx.crossed), None


class AverageUnits(torch.autograd.Function):
    """The mean over the ranks of a gradient inside regions: the true gradient of a whole value."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, crossed: Any) -> torch.Tensor:
        ctx.crossed = crossed
        here = world.current()
        return here.all_reduce_(world.fresh(local)).div_(here.size)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        if ctx.crossed is not None:
            ctx.crossed()
        return apply(WholeIn, grad, ctx.crossed), None


def _ratio(numerator: torch.Tensor, denominator: Any, dtype: torch.dtype) -> torch.Tensor:
    # Adding the numerators and dividing once rounds as one device does (a mean of 13 hits in 15 is 13/15),
    # where adding quotients would round once more per rank.
    total = world.current().all_reduce_(world.fresh(numerator))
    quotient: torch.Tensor = (total / denominator).to(dtype)
    return quotient


def gather(local: torch.Tensor, placement: Shard) -> torch.Tensor:
    """Shard → whole. Forward: all-gather; backward: own block, no communication."""
    if _tracked(local):
        return apply(_Gather, local, placement)
    return world.current().all_gather(local, placement.dim, placement.sizes)


def cut(whole: torch.Tensor, placement: Shard, *, view: bool = False) -> torch.Tensor:
    """Whole → Shard. Forward: own block; backward: all-gather of the blocks.

    `view=True` allows the block to share memory with `whole`: only for operands that nobody changes.
    """
    if _tracked(whole):
        return apply(_Cut, whole, placement)
    block = whole.narrow(placement.dim, placement.offset, placement.rows)
    return block if view else block.clone()


def add_up(local: torch.Tensor, numerator: torch.Tensor | None = None, denominator: Any = None) -> torch.Tensor:
    """Partial → whole. Forward: all-reduce; backward: identity.

    With a numerator and a denominator the value is computed as their quotient (exact rounding), the gradient
    still goes to `local`.
    """
    if _tracked(local):
        return apply(_Sum, local, numerator, denominator)
    if numerator is not None:
        return _ratio(numerator, denominator, local.dtype)
    return world.current().all_reduce_(world.fresh(local))


def broadcast(whole: torch.Tensor) -> torch.Tensor:
    """A whole operand of a sharded operation. Forward: identity; backward: all-reduce."""
    return apply(_Broadcast, whole) if _tracked(whole) else whole


def divide(whole: torch.Tensor) -> torch.Tensor:
    """Whole → Partial. Forward: divide by the number of ranks; backward: identity."""
    return apply(_Divide, whole)
