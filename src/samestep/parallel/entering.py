"""Arguments on their way into a region: global tensors become local ones, the batch's are cut to the rank's rows.

A whole tensor among the arguments (a mask, initial states, noise that the script drew) may belong to the batch, too:
if one of its dimensions is as long as the batch, it probably holds the rows. Which it is, if any, only the check can
tell, so there are several ways to take them; the first that agrees with one device is kept in the plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from samestep.globalview import collectives
from samestep.globalview.placement import Shard
from samestep.globalview.tensor import GlobalTensor
from samestep.nest import map_tensors, tensors

#: Which dimension of a whole tensor holds the rows, of those that are as long as the batch.
FIRST, LAST, NONE = "first", "last", "none"


def long_as_batch(tensor: torch.Tensor, rows: int) -> tuple[int, ...]:
    """The dimensions of a whole tensor that may hold the rows of the batch."""
    if type(tensor) is GlobalTensor or isinstance(tensor, nn.Parameter) or rows not in tensor.shape:
        return ()
    return tuple([d for d, size in enumerate(tensor.shape) if size == rows])


def ways(nest: Any, placement: Shard) -> Iterator[Entering]:
    """The ways to take these arguments that differ, the most likely first."""
    found = [long_as_batch(t, placement.total) for t in tensors(nest)]
    yield Entering(FIRST)
    if any(len(dims) > 1 for dims in found):
        yield Entering(LAST)
    if any(found):
        yield Entering(NONE)


@dataclass(frozen=True)
class Entering:
    """One way to take arguments into a region.

    Attributes:
        way: `FIRST` or `LAST` of the dimensions as long as the batch, or `NONE`: whole tensors stay whole.
    """

    way: str = FIRST

    def row_dim(self, tensor: torch.Tensor, placement: Shard) -> int | None:
        """The dimension of an argument that holds the batch's rows."""
        if type(tensor) is GlobalTensor:
            p = tensor._placement
            return p.dim if isinstance(p, Shard) and p.total == placement.total else None
        dims = long_as_batch(tensor, placement.total) if self.way != NONE else ()
        return (dims[0] if self.way == FIRST else dims[-1]) if dims else None

    def __call__(self, nest: Any, placement: Shard, *, detached: bool = False, crossed: Any = None) -> Any:
        """Arguments as the region sees them: plain tensors, the batch's ones cut to the rank's rows.

        `crossed` is called when a gradient of a gradient of theirs comes back into the region.
        """
        tracking = torch.is_grad_enabled() and not detached

        def cross(local: torch.Tensor) -> torch.Tensor:
            follow = tracking and local.requires_grad
            return collectives.apply(collectives.CrossIn, local, 1, crossed) if follow else local

        def take(tensor: torch.Tensor) -> torch.Tensor:
            dim = self.row_dim(tensor, placement)
            if type(tensor) is GlobalTensor:
                p = tensor._placement
                if isinstance(p, Shard) and p.sizes == placement.sizes:
                    return cross(tensor._local)
                tensor = tensor.whole("argument of a module")
            if dim is not None:  # also the same rows, dealt otherwise
                return cross(collectives.cut(tensor, Shard(dim, placement.sizes), view=True))
            follow = tracking and tensor.requires_grad
            return collectives.apply(collectives.WholeIn, tensor, crossed) if follow else tensor

        return map_tensors(take, nest)

    def detached(self, nest: Any, placement: Shard) -> Any:
        """The same without gradients, for the check."""
        return self(nest, placement, detached=True)


#: Of a plan that takes no arguments in.
ANY_WAY = Entering()
