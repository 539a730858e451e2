"""How many targets of a batch are ignored, counted before a loss asks.

The mean of a cross-entropy needs the number of targets that are not `ignore_index` in the whole batch. Asking the
other ranks at the loss would stop every step for one round trip; the count is started when the batch arrives and
travels while the model computes. It stays with the tensor through views and casts, and is dropped when the tensor
is written to (its version counter moved).
"""

from __future__ import annotations

from typing import Any

import torch

from samestep import world

#: The default `ignore_index` of torch's losses; another one is counted when the loss asks.
IGNORE_INDEX = -100
#: Larger integer tensors are not counted ahead: token ids that are no targets would cost more than they save.
_LARGEST = 1 << 22


class Census:
    """The number of elements equal to `IGNORE_INDEX` in the global tensor, perhaps still on its way."""

    def __init__(self, count: torch.Tensor, work: Any) -> None:
        self._count = count
        self._work = work
        self._value: int | None = None

    def value(self) -> int:
        """The number, waiting for it if need be."""
        if self._value is None:
            if self._work is not None:
                world.current().finish_sum(self._work, "all-reduce")
                self._work = None
            self._value = int(self._count)
        return self._value


def take_census(tensor: Any, whole: torch.Tensor | None = None) -> Any:
    """Start counting in a freshly made sharded tensor; `whole`, if at hand, spares the communication.

    Called on every rank for the same tensors in the same order. Returns `tensor`.
    """
    local = tensor._local
    if local.dtype != torch.int64 or local.dim() == 0 or tensor.numel() > _LARGEST or local.device.type != "cpu":
        return tensor
    if local.is_inference():  # without a version counter a write would go unnoticed
        return tensor
    if whole is not None:
        census = Census((whole == IGNORE_INDEX).sum(), None)
    else:
        count = (local == IGNORE_INDEX).sum()
        census = Census(count, world.current().start_script_sum(count))
    tensor._census = (census, local, local._version)
    return tensor


def pass_on(source: Any, result: Any) -> Any:
    """Let `result`, the same elements in another shape or device, keep the census of `source`."""
    known = source._census
    if known is not None and known[1]._version == known[2] and not result._local.is_inference():
        result._census = (known[0], result._local, result._local._version)
    return result


def census_of(target: Any, ignore_index: int) -> int | None:
    """The number of ignored elements of a target, or None if it was not counted."""
    known = getattr(target, "_census", None)
    if known is None or ignore_index != IGNORE_INDEX or known[1]._version != known[2]:
        return None
    count: int = known[0].value()
    return count
