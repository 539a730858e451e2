"""The functions that a script may call (DESIGN §5). With one rank each does what it says, trivially."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from samestep import world
from samestep.errors import SamestepError
from samestep.globalview.census import take_census
from samestep.globalview.placement import Shard
from samestep.globalview.tensor import GlobalTensor, shard_whole
from samestep.nest import map_tensors


def rank() -> int:
    """This process's number: 0 (main) … `world_size() - 1`."""
    return world.current().rank


def world_size() -> int:
    """The number of ranks, one per device; 1 without the launcher."""
    return world.current().size


def is_main() -> bool:
    """Whether this is rank 0, the one that is seen."""
    return world.current().rank == 0


def barrier() -> None:
    """Wait until every rank is here. All ranks must call it."""
    world.current().barrier()


def shard(tensor: torch.Tensor, dim: int = 0, sizes: Sequence[int] | None = None) -> torch.Tensor:
    """A whole tensor as one that is split over the ranks along `dim`; it stands for the same value.

    Use it for a batch that does not come from a `DataLoader`, so that a model called with it is split.

    Args:
        tensor: the same on every rank.
        dim: the dimension of the rows.
        sizes: rows per rank; blocks that differ by at most one if None.

    Returns:
        A `GlobalTensor` (with one rank: `tensor` itself); gradients flow back to `tensor`.

    Raises:
        SamestepError: `sizes` does not fit the tensor or the number of ranks.

    Example:
        >>> x = shard(torch.arange(6.))
        >>> x.shape, float(x.sum())
        (torch.Size([6]), 15.0)
    """
    here = world.current()
    if not -tensor.dim() <= dim < tensor.dim():
        raise SamestepError(f"shard(…, dim={dim}): the tensor has shape {tuple(tensor.shape)}, no such dimension.")
    dim %= tensor.dim()
    if sizes is not None and (len(sizes) != here.size or sum(sizes) != tensor.size(dim) or min(sizes) < 0):
        raise SamestepError(
            f"shard(…, sizes={tuple(sizes)}): dimension {dim} has {tensor.size(dim)} rows for {here.size} rank(s); "
            "give one non-negative number per rank that add up to that."
        )
    if here.size == 1 or type(tensor) is GlobalTensor:
        return tensor
    cut = shard_whole(tensor, dim, tuple(sizes) if sizes is not None else here.split(tensor.size(dim)))
    return take_census(cut, tensor.detach())  # type: ignore[no-any-return]


def whole(value: Any) -> Any:
    """Any nest (tensors in tuples, lists, dicts, dataclasses) with every global tensor made plain and whole.

    Collective: all ranks must call it. Gradients flow back.
    """
    return map_tensors(lambda t: t.whole() if type(t) is GlobalTensor else t, value)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's block of a sharded tensor, a plain tensor; a whole tensor is returned as it is.

    The block shares memory with the sharded tensor. Write to it on every rank or on none: what is remembered about
    the tensor is dropped where it is written to, and ranks must drop it together.

    Raises:
        SamestepError: the tensor is a sum that is not added up yet, which has no block; use `whole`.
    """
    if type(tensor) is not GlobalTensor:
        return tensor
    if not isinstance(tensor._placement, Shard):
        raise SamestepError("local(tensor): this is a sum over the ranks and has no rows; use samestep.whole(tensor).")
    return tensor._local


def print_all(*values: Any, **kwargs: Any) -> None:
    """`print` on every rank, in the order of the ranks, each line prefixed with its rank; collective.

    Global tensors print as their local block.
    """
    here = world.current()
    text = kwargs.get("sep", " ").join(str(t._local if type(t) is GlobalTensor else t) for t in values)
    everyone = here.all_gather_objects(text)
    if here.rank == 0:
        file = kwargs.get("file") or sys.stdout
        for number, line in enumerate(everyone):
            print(f"[rank {number}] {line}", file=file, end=kwargs.get("end", "\n"), flush=kwargs.get("flush", False))
