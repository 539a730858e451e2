"""Batch norm with the statistics of the global batch, as one device computes them.

`torch.nn.functional.batch_norm` is replaced while Samestep runs; inside a region, in training mode, it normalises by
the statistics of all ranks' rows. The user's modules, their types and state_dict keys stay as they are, and
`torch.nn.SyncBatchNorm`, which comes here too where no process group is initialised, works on the CPU as well.

With `--batchnorm local` each rank normalises by its own rows, without a word to the others. The running statistics
are still those of the global batch, put together once per call of a region: what the script sees is whole.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from samestep import numerics, torch_private, world
from samestep.globalview.placement import Shard
from samestep.globalview.tensor import WHERE
from samestep.parallel.batch_statistics import (
    Statistics,
    from_kernel,
    normalize,
    start_combining,
    torch_batch_norm,
)
from samestep.parallel.stillness import own_reads


class _Update(NamedTuple):
    """Running statistics that are still to take in a batch."""

    running_mean: torch.Tensor
    running_var: torch.Tensor
    momentum: float
    mine: Statistics


class _Held:
    """The updates of one call of a region in local mode.

    They are sent together as soon as there are as many as the last time, and waited for at the end of the region: what
    is computed after its last batch norm hides the way, and ranks need not wait for each other.
    """

    def __init__(self) -> None:
        self._waiting: list[_Update] = []
        self._sent: list[tuple[list[_Update], Callable[[], list[Statistics]]]] = []
        self._count = 0
        self._first: torch.Tensor | None = None

    def add(self, update: _Update) -> None:
        """Hold an update back."""
        self._waiting.append(update)
        self._count += 1
        if self._first is None:
            self._first = update.running_mean
        if self._count == _BEFORE.get(self._first):
            self._send()

    def _send(self) -> None:
        """All of one kind by one collective."""
        waiting, self._waiting = self._waiting, []
        kinds = dict.fromkeys((update.mine.mean.dtype, update.mine.mean.device) for update in waiting)
        for kind in kinds:
            updates = [update for update in waiting if (update.mine.mean.dtype, update.mine.mean.device) == kind]
            self._sent.append((updates, start_combining([update.mine for update in updates])))

    def release(self) -> None:
        """Bring the running statistics up to date."""
        self._send()
        for updates, found in self._sent:
            for update, batch in zip(updates, found(), strict=True):
                _take_in(update.running_mean, update.running_var, update.momentum, batch)
        if self._first is not None:
            _BEFORE[self._first] = self._count


#: How many updates there were in the call of a region that began with this running mean; the same on every rank.
_BEFORE: Any = torch_private.by_identity()


class _State(threading.local):
    #: Updates held back while a region runs in local mode; None: statistics are global.
    held: _Held | None = None
    #: Values per channel of each batch norm in training mode, while a module is checked.
    counts: list[int] | None = None
    #: Whether TorchScript knows of our batch norm.
    scripted = False


_STATE = _State()


def batch_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Takes the place of `torch.nn.functional.batch_norm`."""
    if not (training and WHERE.region) or world.current().size == 1 or input.dim() < 2 or input.size(1) == 0:
        if _STATE.counts is None:
            return torch_batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
        with _counting(input, training):
            return torch_batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    if _STATE.held is not None:
        return _by_own_rows(_STATE.held, input, running_mean, running_var, weight, bias, momentum, eps)
    return _by_all_rows(input, running_mean, running_var, weight, bias, momentum, eps)


def _by_all_rows(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    momentum: float,
    eps: float,
) -> torch.Tensor:
    out, statistics = normalize(input, weight, bias, eps)
    if _STATE.counts is not None:
        with own_reads():
            _STATE.counts.append(int(statistics.values))
    if input.numel() // input.size(1) < 2:  # only then can there be too few; reading a number makes a GPU wait
        with own_reads():
            _refuse_single_values(input, int(statistics.values))
    if running_mean is not None and running_var is not None:
        _take_in(running_mean, running_var, momentum, statistics)
    return out


def _refuse_single_values(input: torch.Tensor, count: int) -> None:
    if count == 1:
        size = torch.Size([1 if d != 1 else n for d, n in enumerate(input.shape)])
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {size}")


def _take_in(running_mean: torch.Tensor, running_var: torch.Tensor, momentum: float, batch: Statistics) -> None:
    with torch.no_grad():
        unbiased = batch.var * (batch.values / (batch.values - 1))
        # Past the version counter, as torch's kernels write them: a backward may still want what a forward in
        # evaluation mode has saved, and takes it as it is then.
        running_mean.data.lerp_(batch.mean.to(running_mean.dtype), momentum)
        running_var.data.lerp_(unbiased.to(running_var.dtype), momentum)


# ---------------------------------------------------------------------- statistics of the rank's own rows
def _by_own_rows(
    held: _Held,
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    momentum: float,
    eps: float,
) -> torch.Tensor:
    if running_mean is None or running_var is None:
        return torch_batch_norm(input, None, None, weight, bias, True, momentum, eps)
    # Running statistics of their own, replaced altogether, are those of the batch: the kernel has them anyway.
    mean, unbiased = torch.zeros_like(running_mean), torch.zeros_like(running_var)
    out = torch_batch_norm(input, mean, unbiased, weight, bias, True, 1.0, eps)
    held.add(_Update(running_mean, running_var, momentum, from_kernel(mean, unbiased, input)))
    return out


@contextmanager
def region_statistics(placement: Shard) -> Iterator[None]:
    """Around one call of a region: in local mode, the running statistics take in the global batch at its end.

    A rank with a single row may have one value per channel, for which there are no statistics: such a batch is
    normalised by the global ones.
    """
    if numerics.chosen().batchnorm != "local" or min(placement.sizes) < 2:
        yield
        return
    before, held = _STATE.held, _Held()
    _STATE.held = held
    try:
        yield
        held.release()
    except torch_private.recomputation_stopped():  # checkpointing has all that it needs: an end, on every rank
        held.release()
        raise
    finally:
        _STATE.held = before


@contextmanager
def always_global() -> Iterator[None]:
    """Within, also in local mode: statistics of the global batch, and none held back, as a check needs it."""
    before, _STATE.held = _STATE.held, None
    try:
        yield
    finally:
        _STATE.held = before


# ---------------------------------------------------------------------- the check
@contextmanager
def counted() -> Iterator[list[int]]:
    """Within: how many values per channel each batch norm in training mode had, of the global batch.

    A batch norm whose input is not the batch (prototypes, a table) would count every rank's copy of it.
    """
    before, _STATE.counts = _STATE.counts, []
    try:
        yield _STATE.counts
    finally:
        _STATE.counts = before


@contextmanager
def _counting(input: torch.Tensor, training: bool) -> Iterator[None]:
    counts, _STATE.counts = _STATE.counts, None  # where functions are watched, torch's comes back to ours
    try:
        if counts is not None and training and input.dim() > 1:
            counts.append(input.numel() // max(1, input.size(1)))
        yield
    finally:
        _STATE.counts = counts


_torch_script = torch.jit.script


@functools.wraps(_torch_script)
def _script(*args: Any, **options: Any) -> Any:
    """Takes the place of `torch.jit.script`, which cannot read our batch norm: it is given torch's own."""
    if not _STATE.scripted:
        _STATE.scripted = True
        torch_private.script_as(batch_norm, torch_batch_norm)
    return _torch_script(*args, **torch_private.script_frames(options))


def install() -> None:
    """Let batch norm inside regions be global, or as was chosen."""
    F.batch_norm = batch_norm
    torch.jit.script = _script
