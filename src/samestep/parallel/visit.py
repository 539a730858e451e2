"""One call of a region on this rank: what must hold while its inside runs, in forward and when computed again.

Activation checkpointing runs a part of a module a second time, in backward, when the call of the region is long
over. `torch.utils.checkpoint.checkpoint` is replaced so that this, too, is inside: batch norm sees the global batch,
and random numbers are drawn as the first time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils.checkpoint

from samestep.globalview.placement import Shard
from samestep.globalview.tensor import WHERE
from samestep.parallel import batch_norm, streams
from samestep.parallel.drawing import Drawing
from samestep.parallel.draws import BOUNDARIES, Draws

_torch_checkpoint = torch.utils.checkpoint.checkpoint


@dataclass(frozen=True)
class Visit:
    """One call of a region.

    Attributes:
        placement: of the batch that it was called with.
        drawn: what is known of its draws, if they are made for the whole batch.
        learn: makes known what is not yet.
    """

    placement: Shard
    drawn: Draws | None = None
    learn: Callable[[], None] | None = None

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`function(*args, **kwargs)` inside the region."""
        with self._inside(self._drawing(ordered=True) or streams.own_stream()):
            return function(*args, **kwargs)

    def run_again(self, kept: bool, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The same in backward; `kept`: torch's checkpointing has put the random streams back to where they stood."""
        otherwise = nullcontext() if kept else streams.own_stream()
        with self._inside(self._drawing(ordered=False) or otherwise):
            return function(*args, **kwargs)

    def _drawing(self, *, ordered: bool) -> Any:
        return Drawing(self.placement, self.drawn, learn=self.learn, ordered=ordered) if self.drawn else None

    @contextmanager
    def _inside(self, stream: AbstractContextManager[Any]) -> Iterator[None]:
        before, _NOW.visit = _NOW.visit, self
        WHERE.region += 1
        try:
            with batch_norm.region_statistics(self.placement), stream:
                yield
        finally:
            WHERE.region -= 1
            _NOW.visit = before


BOUNDARIES.update({Visit.run.__code__, Visit.run_again.__code__})


class _Now(threading.local):
    visit: Visit | None = None


_NOW = _Now()


def _checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Takes the place of `torch.utils.checkpoint.checkpoint`."""
    visit = _NOW.visit
    if visit is None or torch.compiler.is_compiling():
        return _torch_checkpoint(function, *args, **kwargs)
    visit = replace(visit, learn=None)  # which holds the batch
    kept = kwargs.get("preserve_rng_state", True)

    def inside(*args: Any, **kwargs: Any) -> Any:
        if _NOW.visit is not None:
            return function(*args, **kwargs)
        return visit.run_again(kept, function, *args, **kwargs)

    return _torch_checkpoint(inside, *args, **kwargs)


def install() -> None:
    """Let parts of regions that are computed again be inside their region."""
    torch.utils.checkpoint.checkpoint = _checkpoint
