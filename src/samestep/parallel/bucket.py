"""Flat buffers in which the gradients of several parameters are summed over the ranks together."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from samestep import torch_private, world
from samestep.ledger import LEDGER

#: Bytes per bucket. The first is small, so that communication starts early; as DDP's defaults.
FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20
#: Every so many backward passes the parameters themselves are compared between the ranks.
COMPARE_EVERY = 50
#: Elements from which an operation of its own costs less than a second pass over the memory.
_SMALL = 1 << 13


class Bucket:
    """Parameters whose gradients travel together; one dtype, one device."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self.parameters = [weakref.ref(p) for p in parameters]
        self.numels = [p.numel() for p in parameters]
        self.dtype, self.device = parameters[0].dtype, parameters[0].device
        self.waiting = len(parameters)
        self.fired: set[int] = set()
        self.late: list[int] = []
        self.flat: torch.Tensor | None = None
        self.work: Any = None
        self.rounds = 0
        self.norm: torch.Tensor | None = None
        #: The buckets of the regions that it belongs to, itself included.
        self.companions: list[Bucket] = []
        #: Whether it takes part in a backward that is running.
        self.active = False

    def reset(self) -> None:
        """Forget the backward before."""
        self.waiting = len(self.parameters)
        self.fired.clear()
        self.late.clear()
        self.flat = self.work = None
        self.active = False

    def mark(self, slot: int) -> None:
        """Parameter `slot` has its gradient."""
        if not self.active:
            return
        if self.work is not None:
            self.late.append(slot)  # a second accumulation after the bucket left (reentrant checkpointing)
        elif slot not in self.fired:
            self.fired.add(slot)
            self.waiting -= 1

    def start(self) -> None:
        """Copy the gradients in and start the sum.

        Behind the gradients there is one number per parameter: how many ranks have a gradient for it at all. One
        without any on every rank keeps `grad` None, as on one device. The last number is now and then the norm of
        the parameters, to find ranks that have drifted apart.
        """
        owners = [ref() for ref in self.parameters]
        grads = [None if p is None else p.grad for p in owners]
        tail = torch.ones(len(grads) + 1, dtype=self.dtype, device=self.device)
        parts: list[torch.Tensor] = []
        for i, (p, g) in enumerate(zip(owners, grads, strict=True)):
            if g is not None and not g.is_sparse:
                parts.append(g.detach())
            else:
                parts.append(
                    torch.zeros(self.numels[i] if p is None else p.shape, dtype=self.dtype, device=self.device)
                )
                tail[i] = 0
        self.norm = self._norm_now([p for p in owners if p is not None])
        if self.norm is not None:
            tail[-1] = self.norm
        self.flat = torch_private.flatten([*parts, tail])
        if self.dtype is torch.float16:
            # N times the true gradients are in it, of which N would be added: their mean fits where the sum may not.
            self.flat.div_(world.current().size)
        self.work = world.current().start_bucket_sum(self.flat)
        LEDGER.reduced_bytes += self.flat.numel() * self.flat.element_size()

    def _norm_now(self, owners: list[torch.Tensor]) -> torch.Tensor | None:
        self.rounds += 1
        if self.rounds % COMPARE_EVERY != 1 or self.dtype not in (torch.float32, torch.float64) or not owners:
            return None
        norms = torch._foreach_norm([p.detach() for p in owners])
        total: torch.Tensor = torch.stack([n.to(self.dtype) for n in norms]).norm()
        return total

    def _compare(self, total: torch.Tensor) -> None:
        """Raise if the norms of the parameters are not the same on every rank."""
        if self.norm is None:
            return
        mine, mean = float(self.norm), float(total) / world.current().size
        if abs(mine - mean) > 1e-5 * abs(mean):
            raise RuntimeError(
                f"The parameters of a module are no longer the same on every rank (norm {mine:.9g} on rank "
                f"{world.current().rank}, {mean:.9g} on average). Possible reasons: a hook that changes gradients "
                "with numbers of one rank, an optimizer step that only some ranks took, random numbers in the update "
                "that are not drawn from torch's default generator."
            )

    def finish(self) -> None:
        """Wait for the sum and write the mean into `grad`."""
        here = world.current()
        here.finish_sum(self.work)
        flat = self.flat
        assert flat is not None
        owners = [ref() for ref in self.parameters]
        pieces = list(flat.split([*self.numels, len(self.numels) + 1]))
        self._compare(pieces[-1][-1])
        missing = [i for i, p in enumerate(owners) if p is None or p.grad is None]
        counts = pieces[-1].tolist() if missing else None
        targets, sources = [], []
        for i, p in enumerate(owners):
            if p is None or i in self.late or (p.grad is not None and p.grad.is_sparse):
                continue
            if p.grad is None:
                if counts is None or counts[i] == 0:
                    continue
                p.grad = torch.empty_like(p)
            targets.append(p.grad.detach())
            sources.append(pieces[i].view(p.shape))
        _write_means(targets, sources, 1 if self.dtype is torch.float16 else here.size)
        for i in self.late:
            p = owners[i]
            if p is not None and p.grad is not None:
                with torch.no_grad():
                    p.grad.copy_(here.all_reduce_(p.grad.detach().clone()).div_(here.size))


def _write_means(targets: list[torch.Tensor], sums: list[torch.Tensor], ranks: int) -> None:
    """`target = sum / ranks` for each pair, in one pass over large tensors, in one call for many small ones."""
    small = [(t, s) for t, s in zip(targets, sums, strict=True) if t.numel() < _SMALL]
    for target, total in zip(targets, sums, strict=True):
        if target.numel() >= _SMALL:
            torch.div(total, ranks, out=target)
    if small:
        torch._foreach_copy_([t for t, _ in small], [s for _, s in small])
        torch._foreach_div_([t for t, _ in small], ranks)


def grouped(parameters: Iterable[torch.nn.Parameter]) -> list[list[torch.nn.Parameter]]:
    """Parameters in buckets of one dtype and device; a bucket is closed when it has reached its size."""
    groups: list[list[torch.nn.Parameter]] = []
    filling: dict[Any, tuple[list[torch.nn.Parameter], int]] = {}
    for p in parameters:
        key = (p.dtype, p.device)
        group, size = filling.get(key, ([], 0))
        if not group:
            groups.append(group)
        group.append(p)
        size += p.numel() * p.element_size()
        limit = FIRST_BUCKET_BYTES if group is groups[0] else BUCKET_BYTES
        filling[key] = ([], 0) if size >= limit else (group, size)
    return groups
