"""Random streams: the script's is the same on every rank; inside a region each rank draws from another.

Dropout must differ between the rows of a batch, so ranks must not draw alike inside a region; and the script's
stream must stand at the same place on every rank afterwards, or the next shuffle would differ.

A region's stream is made from one number drawn from the script's, and the rank. So whatever repeats the script's
stream repeats the region's: `manual_seed`, `set_rng_state`, `fork_rng`, a checkpointed block that is computed again
in backward, a run that is resumed. A region that does not draw leaves the script's stream alone, as on one device.

With `--exact-random` there are no such streams: see `samestep.parallel.exact_random`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from samestep import numerics, torch_private, world

_LARGEST_SEED = 1 << 63


@contextmanager
def own_stream() -> Iterator[None]:
    """Within: torch's default generators draw from the rank's own stream; after: the script's goes on.

    The script's moves by one number if the region drew, else not at all. Whether it drew is the same on every rank,
    because control flow is.
    """
    script = torch_state()
    number = int(torch.empty((), dtype=torch.int64).random_())
    moved = torch_state()
    _seed((number * 1_000_003 + 7919 * (world.current().rank + 1)) % _LARGEST_SEED)
    fresh = torch_state()
    try:
        yield
    finally:
        drew = not same_state(fresh, torch_state())
        set_torch_state(moved if drew else script)


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    if _cuda():
        torch.cuda.manual_seed(seed)


def _cuda() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()


def torch_state() -> tuple[torch.Tensor, ...]:
    """Where torch's default generators stand: the CPU's, and this rank's GPU's if it is in use."""
    return (torch.get_rng_state(), torch.cuda.get_rng_state()) if _cuda() else (torch.get_rng_state(),)


def set_torch_state(state: tuple[torch.Tensor, ...]) -> None:
    """Let them stand there again."""
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state(state[1])


def same_state(a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...]) -> bool:
    """Whether two states are equal; a GPU that came into use in between counts as moved."""
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def keep_alike_in_backward() -> None:
    """Called in a backward that goes into a region: at its end the script's streams stand alike on every rank.

    A hook that adds noise to gradients inside a module draws for the rank's rows, of which ranks may have more or
    fewer. With `--exact-random` nothing is done: a block that is computed again draws as one device does.
    """
    task = torch_private.current_graph_task()
    if task == _BACKWARD.task or numerics.chosen().exact_random:
        return
    _BACKWARD.task = task
    before = torch_state()

    def at_the_end() -> None:
        if not same_state(before, torch_state()):
            set_torch_state(before)
            torch.empty((), dtype=torch.int64).random_()  # the next backward is to draw other numbers
            if _cuda():
                torch.empty((), dtype=torch.int64, device="cuda").random_()

    torch_private.after_backward(at_the_end)


class _Backward(threading.local):
    task: int | None = None


_BACKWARD = _Backward()


def all_states() -> tuple[Any, ...]:
    """Where all of the script's streams stand: torch's, Python's and NumPy's."""
    try:
        import numpy as np
    except ImportError:
        return torch_state(), random.getstate(), None
    return torch_state(), random.getstate(), np.random.get_state()


def set_all_states(states: tuple[Any, ...]) -> None:
    """Let them stand there again."""
    set_torch_state(states[0])
    random.setstate(states[1])
    if states[2] is not None:
        import numpy as np

        np.random.set_state(states[2])


@contextmanager
def kept_streams() -> Iterator[None]:
    """After: all streams stand where they stood."""
    states = all_states()
    try:
        yield
    finally:
        set_all_states(states)
