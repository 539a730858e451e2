"""Small collectives on the CPU: one message from every rank to every other, instead of a way around a ring.

Gloo sums in 2(N-1) steps and gathers in N-1, and each costs two threads their sleep; that, not the bytes, is the time
of a small collective. Sums of 256 bytes to 64 KiB on 2, 3 and 4 ranks of a machine with 2 cores took 1.0, 2.5 and
4.5 ms around the ring and 0.2, 1.1 and 1.9 ms by exchange, of a megabyte 1.7, 3.1 and 5.9 ms and 1.0, 2.4 and 4.6 ms;
the sum of a single number is quicker around the ring (0.1 to 0.4 ms), and from two megabytes on the bytes count. NCCL
chooses by itself.

And while there is a core for every rank, a wait begins by looking: a thread that sleeps is woken late, and so is the
core that fell asleep with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import torch

#: Bytes of one rank up to which an exchange is quicker, and those that a rank sends then.
MOST_BYTES = 1280 << 10
MOST_SENT_BYTES = 3 * MOST_BYTES
#: Seconds that a wait looks before it sleeps.
LOOK_S = 0.001


def pays(device: torch.device, rank_bytes: int, size: int) -> bool:
    """Whether a collective of so many bytes per rank, the same number on each of `size` ranks, is quicker as an
    exchange."""
    return device.type == "cpu" and rank_bytes <= MOST_BYTES and rank_bytes * (size - 1) <= MOST_SENT_BYTES


def look(work: Any) -> None:
    """Give what has been started a moment to be done, and others the core meanwhile."""
    until = time.perf_counter() + LOOK_S
    while not work.is_completed() and time.perf_counter() < until:
        os.sched_yield()


def gather(group: Any, mine: torch.Tensor, lengths: Sequence[int]) -> tuple[torch.Tensor, Any]:
    """Start gathering every rank's 1-dimensional `mine`, of `lengths[r]` elements on rank r, and what to wait for."""
    everyone = mine.new_empty(sum(lengths))
    work = group.alltoall_base(everyone, mine.repeat(len(lengths)), list(lengths), [mine.numel()] * len(lengths))
    return everyone, work


def start_sum(group: Any, tensor: torch.Tensor, size: int) -> Sum:
    """Start adding up a contiguous tensor over `size` ranks, in place."""
    flat = tensor.view(-1)
    mine = torch.view_as_real(flat).view(-1) if flat.is_complex() else flat
    everyone, work = gather(group, mine.view(torch.uint8), [mine.numel() * mine.element_size()] * size)
    return Sum(mine, everyone.view(mine.dtype).view(size, -1), work)


class Sum:
    """A sum that has been started. Every rank adds in the order of the ranks, so all get the same number."""

    def __init__(self, target: torch.Tensor, everyone: torch.Tensor, work: Any) -> None:
        self._target = target
        self._everyone = everyone
        self._work = work

    def is_completed(self) -> bool:
        """Whether the others' parts are here."""
        return bool(self._work.is_completed())

    def wait(self) -> bool:
        """Wait for the others' parts and add them up."""
        done = bool(self._work.wait())
        with torch.no_grad():
            torch.sum(self._everyone, 0, dtype=self._target.dtype, out=self._target)
        return done
