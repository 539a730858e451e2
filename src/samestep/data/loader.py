"""`DataLoader` iteration: each rank loads its own rows of every global batch.

The loader stays the script's own object: samplers, `len`, `batch_size`, `drop_last`, the order of the samples and
the draws from the random streams are those of one process. Only its iterator differs.

* Map-style data set and torch's default collate function (or one marked `samestep.rowwise`): the rank fetches its
  block of each batch's indices.
* Anything else (a collate function of the script's, an iterable data set): every rank loads the whole batch, and its
  tensors are cut. Right, slower.
* A batch with fewer rows than ranks: loaded and computed whole by every rank.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils.collate import default_collate, default_convert

from samestep import world
from samestep.data.streams import kept_streams
from samestep.globalview.census import take_census
from samestep.globalview.placement import Shard
from samestep.globalview.tensor import shard_whole, wrap
from samestep.ledger import LEDGER
from samestep.nest import map_tensors, tensors
from samestep.notice import notice_once

_original_get_iterator = DataLoader._get_iterator
_ROWWISE: set[Any] = {default_collate, default_convert}


def rowwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a collate function that treats its samples one by one, so that each rank may collate only its own.

    It must give tensors with one row per sample, and nothing that depends on the other samples (no padding to the
    longest).

    Example:
        >>> @rowwise
        ... def collate(samples):
        ...     return torch.stack([s["x"] for s in samples])
    """
    function.__samestep_rowwise__ = True  # type: ignore[attr-defined]
    return function


def _is_rowwise(function: Any) -> bool:
    try:
        return function in _ROWWISE or getattr(function, "__samestep_rowwise__", False)
    except TypeError:  # an unhashable callable
        return False


def get_iterator(loader: DataLoader[Any]) -> Any:
    """Takes the place of `DataLoader._get_iterator`."""
    if world.current().size == 1:
        return _original_get_iterator(loader)
    mapped = not isinstance(loader.dataset, IterableDataset) and loader._auto_collation
    if mapped and loader.collate_fn is not default_convert and _is_rowwise(loader.collate_fn):
        return ShardIterator(loader)
    return WholeIterator(loader)


class _OwnRows:
    """A batch sampler that gives this rank's block of each batch, and notes each batch's length."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.lengths: deque[int] = deque()

    def __iter__(self) -> Iterator[Any]:
        here = world.current()
        for batch in self.sampler:
            indices = batch if isinstance(batch, (list, tuple)) else list(batch)
            self.lengths.append(len(indices))
            if len(indices) < here.size:
                yield indices
            else:
                place = Shard(0, here.split(len(indices)))
                yield indices[place.offset : place.offset + place.rows]

    def __len__(self) -> int:
        return len(self.sampler)


class _WorkerInit:
    """Gives the workers of each rank random streams of their own, then runs the script's `worker_init_fn`."""

    def __init__(self, rank: int, init: Any) -> None:
        self.rank = rank
        self.init = init

    def __call__(self, worker: int) -> None:
        import random

        seed = (torch.initial_seed() + 1_000_003 * self.rank) % (1 << 63)
        torch.manual_seed(seed)
        random.seed(seed)
        try:
            import numpy as np

            np.random.seed(seed % (1 << 32))
        except ImportError:
            pass
        if self.init is not None:
            self.init(worker)


class _Iterator:
    """What both iterators share: waiting time, and torch's own iterator inside."""

    def __init__(self, loader: DataLoader[Any], inner: Any) -> None:
        self._loader = loader
        self._inner = inner

    def __iter__(self) -> Any:
        return self

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name in ("_inner", "_loader"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def _next(self) -> Any:
        began = time.perf_counter()
        try:
            return next(self._inner)
        finally:
            LEDGER.data_s += time.perf_counter() - began


class ShardIterator(_Iterator):
    """Each rank fetches and collates its own rows."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        here = world.current()
        self._rows = _OwnRows(loader.batch_sampler)
        twin = copy.copy(loader)
        # Past DataLoader.__setattr__, which forbids changing these after construction.
        object.__setattr__(twin, "batch_sampler", self._rows)
        if loader.num_workers:
            object.__setattr__(twin, "num_workers", max(1, -(-loader.num_workers // here.size)))
            object.__setattr__(twin, "worker_init_fn", _WorkerInit(here.rank, loader.worker_init_fn))
        self._twin = twin
        super().__init__(loader, _original_get_iterator(twin))
        if loader.num_workers == 0:
            _keep_streams_while_fetching(self._inner, loader.dataset)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """A persistent iterator starts over."""
        self._rows.lengths.clear()
        self._inner._reset(self._twin, first_iter)

    def __next__(self) -> Any:
        batch = self._next()
        rows = self._rows.lengths.popleft()
        here = world.current()
        if rows < here.size:
            LEDGER.whole_batches["fewer rows than ranks"] += 1
            return batch
        sizes = here.split(rows)
        LEDGER.cuts[sizes] += 1
        place = Shard(0, sizes)
        return _with_whole_lists(map_tensors(lambda t: _as_shard(t, place), batch), place)


def _keep_streams_while_fetching(iterator: Any, dataset: Any) -> None:
    """Only the fetch: the sampler draws its indices from the script's streams, alike on every rank."""
    fetcher = iterator._dataset_fetcher
    fetch = fetcher.fetch

    def fetch_own_rows(indices: Any) -> Any:
        with kept_streams(dataset):
            return fetch(indices)

    fetcher.fetch = fetch_own_rows


def _as_shard(local: torch.Tensor, place: Shard) -> torch.Tensor:
    if local.dim() == 0 or local.size(0) != place.rows:
        raise RuntimeError(
            f"A row-wise collate function gave a tensor of shape {tuple(local.shape)} for {place.rows} samples; its "
            "first dimension must be the samples. Remove `samestep.rowwise`, or let it return one row per sample."
        )
    if type(local) is not torch.Tensor:
        notice_once(
            f"batches of {type(local).__name__} become plain tensors: what else that class keeps with a tensor is gone."
        )
        local = local.as_subclass(torch.Tensor)
    tensor: torch.Tensor = take_census(wrap(local, place))
    return tensor


def _with_whole_lists(batch: Any, place: Shard) -> Any:
    """Lists of strings (file names, captions), one per sample: gathered, so that the script sees all of them."""
    if isinstance(batch, (list, tuple)) and batch and all(isinstance(v, (str, bytes)) for v in batch):
        everyone = world.current().all_gather_objects(list(batch))
        return type(batch)(name for part in everyone for name in part)
    if isinstance(batch, dict):
        for key, value in batch.items():
            batch[key] = _with_whole_lists(value, place)
        return batch
    if isinstance(batch, list):
        return [_with_whole_lists(value, place) for value in batch]
    if isinstance(batch, tuple):
        parts = [_with_whole_lists(value, place) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


class WholeIterator(_Iterator):
    """Every rank loads the whole batch; the tensors with one row per sample are cut."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader, _original_get_iterator(loader))

    def __next__(self) -> Any:
        return cut_batch(self._next())


def cut_batch(batch: Any, *, any_class: bool = False) -> Any:
    """A batch that every rank holds whole, with each tensor of one row per sample cut.

    Tensors of a class of their own (MONAI's carry where an image came from) stay whole, with what they carry, unless
    `any_class`: then they are cut as plain tensors.
    """
    here = world.current()
    strided = [t for t in tensors(batch) if t.dim() > 0 and t.layout is torch.strided]
    found = [t for t in strided if any_class or type(t) is torch.Tensor]
    lengths = [t.size(0) for t in found]
    rows = max(set(lengths), key=lengths.count) if lengths else 0
    if rows < here.size:
        reason = "fewer rows than ranks" if rows else "tensors of a class of their own" if strided else "no tensors"
        LEDGER.whole_batches[reason] += 1
        return batch
    LEDGER.cuts[here.split(rows)] += 1
    return map_tensors(lambda t: _cut(t, rows) if any_class or type(t) is torch.Tensor else t, batch)


def _cut(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    if tensor.dim() == 0 or tensor.size(0) != rows or tensor.layout is not torch.strided:
        return tensor
    plain = tensor if type(tensor) is torch.Tensor else tensor.as_subclass(torch.Tensor)
    return take_census(shard_whole(plain, 0, world.current().split(rows)), plain)  # type: ignore[no-any-return]


def install() -> None:
    """Let every `DataLoader` iterate over shards."""
    DataLoader._get_iterator = get_iterator  # type: ignore[method-assign, assignment]
