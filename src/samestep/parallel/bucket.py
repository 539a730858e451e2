"""Flat buffers in which the gradients of several parameters are summed over the ranks together.

A gradient is moved to its place when backward has made it, divided by the number of ranks on the way, and after the sum
its place *is* the parameter's `grad`: no second copy, no second pass over the memory. (DDP has this as
`gradient_as_bucket_view`.) A `grad` that was elsewhere before, or that has a history, stays the same object and is
written to instead. The buffer is used again only if nobody but the parameters holds its memory, so that a gradient
which the script has kept never changes.
"""

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
#: Each gradient begins at a multiple of so many bytes, as kernels that read several numbers at a time want it.
ALIGNMENT = 64


class Bucket:
    """Parameters whose gradients travel together; one dtype, one device."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self.parameters = [weakref.ref(p) for p in parameters]
        self.dtype, self.device = parameters[0].dtype, parameters[0].device
        self.waiting = len(parameters)
        #: Slots whose gradient lies in the buffer, and those that got more after the buffer had left.
        self.filled: set[int] = set()
        self.late: list[int] = []
        self.work: Any = None
        self.rounds = 0
        self.norm: torch.Tensor | None = None
        #: The buckets of the regions that it belongs to, itself included.
        self.companions: list[Bucket] = []
        #: Whether it takes part in a backward that is running.
        self.active = False
        self._buffer: _Buffer | None = None
        #: Slots whose gradient is the bucket's to move: there was none when the backward began, or it lay here.
        self._fresh: list[bool] = []
        self._ranks = torch.tensor(world.current().size, dtype=self.dtype)

    def reset(self) -> None:
        """Forget the backward before."""
        self.waiting = len(self.parameters)
        self.filled.clear()
        self.late.clear()
        self.work = self.norm = None
        self.active = False

    def begin(self) -> None:
        """Make room for the gradients of a backward."""
        self.reset()
        owners = [ref() for ref in self.parameters]
        buffer = self._buffer
        own = [False] * len(owners) if buffer is None else [buffer.has(slot, p) for slot, p in enumerate(owners)]
        if buffer is None or buffer.is_held(besides=sum(own)) or not buffer.fits(owners):
            self._buffer = buffer = None  # its memory goes before there is new
            self._buffer = _Buffer(owners, self.dtype, self.device)
            own = [False] * len(owners)
        self._fresh = [p is not None and (mine or p.grad is None) for p, mine in zip(owners, own, strict=True)]

    def release(self) -> None:
        """Give the memory back once no parameter is left; buckets that know each other outlive them a while."""
        if all(ref() is None for ref in self.parameters):
            self._buffer = None

    def mark(self, slot: int, parameter: torch.Tensor) -> None:
        """Parameter `slot` has its gradient."""
        if not self.active:
            return
        if self.work is not None:
            self.late.append(slot)  # a second accumulation after the bucket left (reentrant checkpointing)
            return
        self._fill(slot, parameter)
        if slot not in self.filled:
            self.filled.add(slot)
            self.waiting -= 1

    def _fill(self, slot: int, parameter: torch.Tensor) -> bool:
        """Bring the gradient of a parameter to its place; whether there is any."""
        assert self._buffer is not None
        grad, place = parameter.grad, self._buffer.places[slot]
        if grad is None or grad.is_sparse:
            self._fresh[slot] = self._fresh[slot] and grad is None
            return False
        again = self._fresh[slot] and slot in self.filled  # then this is what came after the first
        self._fresh[slot] = again or (self._fresh[slot] and _is_alike(grad, place))
        # N times the true gradients are in it, of which N are added. Dividing first also keeps float16 in its range.
        grad = grad.detach() if grad.requires_grad else grad
        if again:
            place.add_(grad / self._ranks)
        else:
            torch.div(grad, self._ranks, out=place)
        if self._fresh[slot]:
            parameter.grad = None
        return True

    def put_back(self) -> None:
        """Undo it: the gradients are the rank's own part again."""
        for slot, ref in enumerate(self.parameters):
            parameter = ref()
            if parameter is None or not self._fresh[slot] or slot not in self.filled:
                continue
            assert self._buffer is not None
            parameter.grad = self._buffer.places[slot] * self._ranks

    def start(self) -> None:
        """Start the sum.

        Behind the gradients there is one number per parameter: how many ranks have a gradient for it at all. One
        without any on every rank keeps `grad` None, as on one device. The last number is now and then the norm of
        the parameters, to find ranks that have drifted apart.
        """
        buffer = self._buffer
        assert buffer is not None
        owners = [ref() for ref in self.parameters]
        buffer.tail.fill_(1)
        for slot, parameter in enumerate(owners):
            if slot in self.filled and not _is_sparse(parameter):
                continue
            if parameter is not None and self._fill(slot, parameter):
                self.filled.add(slot)
                continue
            self.filled.discard(slot)
            buffer.places[slot].zero_()
            buffer.tail[slot] = 0
        self.norm = self._norm_now([p for p in owners if p is not None])
        if self.norm is not None:
            buffer.tail[-1] = self.norm
        self.work = world.current().start_bucket_sum(buffer.flat)
        LEDGER.reduced_bytes += buffer.flat.numel() * buffer.flat.element_size()

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
        """Wait for the sum and let it be the parameters' `grad`."""
        here, buffer = world.current(), self._buffer
        here.finish_sum(self.work)
        assert buffer is not None
        self._compare(buffer.tail[-1])
        owners = [ref() for ref in self.parameters]
        targets, sources = [], []
        for slot, parameter in enumerate(owners):
            if parameter is None or _is_sparse(parameter) or (slot in self.late and not self._fresh[slot]):
                continue
            if slot not in self.filled and buffer.tail[slot] == 0:  # on no rank
                continue
            if self._fresh[slot]:
                more = parameter.grad
                buffer.give(slot, parameter)
                if more is not None:
                    _add(parameter, more)
            else:
                targets.append(_gradient_of(parameter))
                sources.append(buffer.places[slot])
        if targets:
            torch._foreach_copy_(targets, sources)
        for slot in self.late:
            parameter = owners[slot]
            if parameter is not None and parameter.grad is not None and not self._fresh[slot]:
                with torch.no_grad():
                    parameter.grad.copy_(_mean(parameter.grad))


def _mean(local: torch.Tensor) -> torch.Tensor:
    here = world.current()
    return here.all_reduce_(local.detach().clone(memory_format=torch.contiguous_format)).div_(here.size)


def _add(parameter: torch.Tensor, late: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.add_(_mean(late))


class _Buffer:
    """The memory of a bucket: a place for each gradient, laid out like its parameter, and the tail."""

    def __init__(self, owners: list[torch.nn.Parameter | None], dtype: torch.dtype, device: torch.device) -> None:
        self._forms = [_form(p) for p in owners]
        step = max(1, ALIGNMENT // dtype.itemsize)
        starts, size = [], 0
        for p in owners:
            starts.append(size)
            size += -(-(0 if p is None else p.numel()) // step) * step
        # Zeros, as what lies between the places is summed, too.
        self.flat = torch.zeros(size + len(owners) + 1, dtype=dtype, device=device)
        self.places = [
            self.flat.new_empty(0) if p is None else _laid_out(self.flat, p, start)
            for p, start in zip(owners, starts, strict=True)
        ]
        self.tail = self.flat[size:]
        self._users = torch_private.storage_users(self.flat)

    def has(self, slot: int, parameter: torch.Tensor | None) -> bool:
        """Whether the gradient of a parameter lies in its place."""
        grad = None if parameter is None else parameter.grad
        if grad is None or grad.layout is not torch.strided or grad.numel() == 0:
            return False
        place = self.places[slot]
        return grad.data_ptr() == place.data_ptr() and _is_alike(grad, place)

    def is_held(self, besides: int) -> bool:
        """Whether tensors outside have this memory, besides so many gradients."""
        return self._users is None or torch_private.storage_users(self.flat) != self._users + besides

    def fits(self, owners: list[torch.nn.Parameter | None]) -> bool:
        """Whether the parameters are still of the forms for which it was made (`.to(...)` changes them in place)."""
        return [_form(p) for p in owners] == self._forms

    def give(self, slot: int, parameter: torch.Tensor) -> None:
        """Make a place the `grad` of its parameter; `data`, so that to autograd it is no view of the others."""
        parameter.grad = self.places[slot].data if parameter.numel() else torch.zeros_like(parameter)


def _form(parameter: torch.Tensor | None) -> Any:
    return None if parameter is None else (parameter.shape, parameter.stride(), parameter.dtype)


def _laid_out(flat: torch.Tensor, parameter: torch.Tensor, start: int) -> torch.Tensor:
    """The place from `start` on with the strides of the parameter if it fills its memory, else contiguous."""
    by_stride = sorted(zip(parameter.stride(), parameter.shape, strict=True))
    extent = 1
    for stride, length in by_stride:
        if length != 1 and stride != extent:
            return flat[start : start + parameter.numel()].view(parameter.shape)
        extent *= length
    return flat.as_strided(parameter.shape, parameter.stride(), start)


def _is_alike(grad: torch.Tensor, place: torch.Tensor) -> bool:
    """Whether to the script the place is as good as the gradient itself, which `create_graph` gives a history."""
    alike = grad.dtype is place.dtype and grad.stride() == place.stride() and type(grad) is torch.Tensor
    return alike and not grad.requires_grad


def _is_sparse(parameter: torch.Tensor | None) -> bool:
    return parameter is not None and parameter.grad is not None and parameter.grad.is_sparse


def _gradient_of(parameter: torch.Tensor) -> torch.Tensor:
    if parameter.grad is None:
        parameter.grad = torch.empty_like(parameter)
    return parameter.grad.detach()


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
