"""Buffers whose new values are still on the way: the exchange goes on while the script does, until somebody looks.

With `--batchnorm local` the running statistics are put together from all ranks' rows at the end of a region's forward.
Waiting for it there lets every rank wait for the slowest once more per step (3 % of a small convnet's step on two
cores). Nobody needs them before the next forward, as a rule; but a script may look at any time. So a buffer that waits
is of the class `_Pending`, through which Python's every use of a tensor goes, and is a plain tensor again after that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

_WAITING: list[tuple[Sequence[torch.Tensor], Callable[[], None]]] = []
_LOCK = threading.RLock()  # a block that is computed again in backward may be in another thread


class _Pending(torch.Tensor):
    """A tensor that gets its values when it is first used."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        settle()
        return func(*args, **(kwargs or {}))


_Pending.__name__ = _Pending.__qualname__ = "Tensor"


def postpone(buffers: Sequence[torch.Tensor], finish: Callable[[], None]) -> None:
    """Call `finish`, which writes the buffers, before any of them is used. Every rank must postpone alike."""
    if not all(type(buffer) is torch.Tensor for buffer in buffers):
        settle()
        finish()
        return
    with _LOCK:
        _WAITING.append((buffers, finish))
        for buffer in buffers:
            buffer.__class__ = _Pending


def settle() -> None:
    """Let no buffer wait any longer."""
    with _LOCK:
        waiting = list(_WAITING)
        _WAITING.clear()
        for buffers, _ in waiting:
            for buffer in buffers:
                buffer.__class__ = torch.Tensor
        for _, finish in waiting:
            finish()
