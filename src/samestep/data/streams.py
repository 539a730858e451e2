"""Random augmentation in the main process must not move the script's streams.

Each rank fetches other samples, so it would draw another number of times than its peers; afterwards their streams,
and with them the next shuffle, would differ.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import Subset, TensorDataset

from samestep import world

_own: dict[str, Any] = {}


def _draws_nothing(dataset: Any) -> bool:
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset) is TensorDataset


@contextmanager
def kept_streams(dataset: Any) -> Iterator[None]:
    """Within: draws come from the rank's own streams; after: the script's stand where they stood."""
    if _draws_nothing(dataset):
        yield
        return
    script = _states()
    _set(_own.get("states") or _first(script))
    try:
        yield
    finally:
        _own["states"] = _states()
        _set(script)


def _states() -> tuple[Any, Any, Any]:
    numpy = sys.modules.get("numpy")
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state() if numpy is not None else None


def _set(states: tuple[Any, Any, Any]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    numpy = sys.modules.get("numpy")
    if numpy is not None and states[2] is not None:
        numpy.random.set_state(states[2])


def _first(script: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """The rank's own streams: derived from the script's seed and the rank."""
    seed = (torch.initial_seed() + 15_485_863 * (world.current().rank + 1)) % (1 << 63)
    generator = torch.Generator().manual_seed(seed)
    numpy = sys.modules.get("numpy")
    state = numpy.random.RandomState(seed % (1 << 32)).get_state() if numpy is not None else None
    return generator.get_state(), random.Random(seed).getstate(), state
