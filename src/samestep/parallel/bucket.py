"""Flat buffers in which the gradients of several parameters are summed over the ranks together.

A gradient is moved to its place when backward has made it, divided by the number of ranks on the way, and after the sum
its place *is* the parameter's `grad`: no second copy, no second pass over the memory. (DDP has this as
`gradient_as_bucket_view`.) A `grad` that was elsewhere before, or that has a history, stays the same object and is
written to instead. The buffer is used again only if nobody but the parameters holds its memory, so that a gradient
which the script has kept never changes; from then on gradients have memory of their own, so that one that is kept does
not keep its whole bucket. On GPUs they always have.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from samestep import torch_private, world
from samestep.ledger import LEDGER
from samestep.place import PLACE

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
        self.waiting = len(parameters)
        #: Slots whose gradient lies in the buffer, and those that got more after the buffer had left.
        self.filled: set[int] = set()
        self.late: list[int] = []
        self.work: Any = None
        self.rounds = 0
        self.norm: torch.Tensor | None = None
        self.place = 0
        #: The buckets of the regions that it belongs to, itself included.
        self.companions: list[Bucket] = []
        #: Whether it takes part in a backward that is running.
        self.active = False
        self._buffer: _Buffer | None = None
        #: What the parameters were like when they were last seen; those that are gone keep their place, since ranks
        #: need not lose them at the same time.
        self._forms: list[_Form] = []
        #: Slots whose gradient is the bucket's to move: there was none when the backward began, or it lay here.
        self._fresh: list[bool] = []
        #: Whether gradients have memory of their own: the script keeps some, which would keep all of the bucket's.
        self._apart = False
        self._take_forms([_form(p) for p in parameters])

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
        forms = [old if p is None else _form(p) for p, old in zip(owners, self._forms, strict=True)]
        buffer = self._buffer
        own = [False] * len(owners) if buffer is None else [buffer.has(slot, p) for slot, p in enumerate(owners)]
        if buffer is not None and buffer.is_held(besides=sum(own)):
            self._apart, buffer = True, None
        if buffer is None or forms != self._forms:
            self._take_forms(forms)
            self._buffer = None  # its memory goes before there is new
            self._buffer = _Buffer(forms, self.dtype, self.device)
            own = [False] * len(owners)
        self._fresh = [
            p is not None and (mine or (p.grad is None and not self._apart))
            for p, mine in zip(owners, own, strict=True)
        ]

    def _take_forms(self, forms: list[_Form]) -> None:
        """What follows from the forms. `.to(...)` changes them in place, and so does whoever assigns to `data`."""
        self._forms = forms
        self.dtype = functools.reduce(torch.promote_types, [form.dtype for form in forms])
        self.device = forms[0].device
        self._apart = self._apart or self.device.type != "cpu"
        self._ranks = torch.tensor(world.current().size, dtype=self.dtype)

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
        again = self._fresh[slot] and slot in self.filled  # then this is what came after the first
        if grad is None or (grad.is_sparse and not again):
            self._fresh[slot] = self._fresh[slot] and grad is None
            return False
        # A hook of the script's that comes after ours is to find the gradient.
        alike = _is_alike(grad, place) and torch_private.hook_count(parameter) < 2
        self._fresh[slot] = again or (self._fresh[slot] and alike)
        # N times the true gradients are in it, of which N are added. Dividing first also keeps float16 in its range.
        grad = grad.detach() if grad.requires_grad else grad
        if again:
            place.add_((grad.to_dense() if grad.is_sparse else grad) / self._ranks)
        else:
            torch.div(grad, self._ranks, out=place)
        if self._fresh[slot]:
            parameter.grad = None
        return True

    def put_back(self) -> None:
        """Undo it: the gradients are the rank's own part again, besides what the script has put there since."""
        for slot, ref in enumerate(self.parameters):
            parameter = ref()
            if parameter is None or not self._fresh[slot] or slot not in self.filled:
                continue
            assert self._buffer is not None
            mine = self._buffer.places[slot] * self._ranks
            parameter.grad = mine if parameter.grad is None else parameter.grad + mine

    def start(self) -> None:
        """Start the sum.

        Behind the gradients there is one number per parameter: how many ranks have a gradient for it at all. One
        without any on every rank keeps `grad` None, as on one device. The last number is now and then the norm of
        the parameters, to find ranks that have drifted apart, and the one before says where the script is.
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
        self.place = self._place_now()
        if self.place:
            buffer.tail[-2] = self.place
        self.norm = self._norm_now([p for p in owners if p is not None])
        if self.norm is not None:
            buffer.tail[-1] = self.norm
        self.work = world.current().start_bucket_sum(buffer.flat)
        LEDGER.reduced_bytes += buffer.flat.numel() * buffer.flat.element_size()

    def _place_now(self) -> int:
        """Where the script is; 0 where that cannot be compared exactly, or only by waiting for the device."""
        exact = self.device.type == "cpu" and self.dtype in (torch.float32, torch.float64)
        return PLACE.number if exact and world.current().size <= 16 else 0

    def _norm_now(self, owners: list[torch.Tensor]) -> torch.Tensor | None:
        self.rounds += 1
        if self.rounds % COMPARE_EVERY != 1 or self.dtype not in (torch.float32, torch.float64) or not owners:
            return None
        norms = torch._foreach_norm([p.detach() for p in owners])
        total: torch.Tensor = torch.stack([n.to(self.dtype) for n in norms]).norm()
        return total

    def _compare_places(self, total: torch.Tensor) -> None:
        """Raise if this is not the sum of the same step on every rank."""
        here = world.current()
        if self.place and float(total) != self.place * here.size:
            raise RuntimeError(
                "The ranks are at different lines of the script, and would add up gradients of different steps. "
                "Possible reasons: a signal whose handler came between at different steps, an exception that one "
                "rank's rows alone have raised and the script has caught, a clock or a file that decides."
            )

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
        self._compare_places(buffer.tail[-2])
        self._compare(buffer.tail[-1])
        owners = [ref() for ref in self.parameters]
        targets, sources = [], []
        for slot, parameter in enumerate(owners):
            filled, fresh = slot in self.filled, self._fresh[slot]
            moved = filled and fresh
            if parameter is None or (_is_sparse(parameter) and not moved) or (slot in self.late and not fresh):
                continue
            if not filled and buffer.tail[slot] == 0:  # on no rank
                continue
            if fresh:
                more = parameter.grad
                buffer.give(slot, parameter)
                if more is not None:
                    _add(parameter, more)
            elif parameter.grad is not None or not filled:  # else a hook has used and dropped it
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
    parameter.grad.add_(_mean(late.to_dense() if late.is_sparse else late))


class _Form(NamedTuple):
    """What the gradient of a parameter is like."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def _form(parameter: torch.Tensor) -> _Form:
    return _Form(parameter.shape, parameter.stride(), parameter.dtype, parameter.device)


class _Buffer:
    """The memory of a bucket: a place for each gradient, laid out like its parameter, and the tail.

    On the CPU it is a `bytearray`, so that a gradient can have a storage of its own in it: as long as the gradient, as
    `torch.save` and `deepcopy` copy storages whole; and how many there are is the `bytearray`'s count of references.
    """

    def __init__(self, forms: list[_Form], dtype: torch.dtype, device: torch.device) -> None:
        step = max(1, ALIGNMENT // dtype.itemsize)
        self._forms = forms
        self._starts, size = [], 0
        for form in forms:
            self._starts.append(size)
            size += -(-form.shape.numel() // step) * step
        total = size + len(forms) + 2
        # Zeros, as what lies between the places is summed, too.
        if device.type == "cpu":
            self._memory = bytearray(total * dtype.itemsize + ALIGNMENT)
            self._offset = -torch.frombuffer(self._memory, dtype=torch.uint8, count=1).data_ptr() % ALIGNMENT
            self.flat = torch.frombuffer(self._memory, dtype=dtype, count=total, offset=self._offset)
        else:
            self._memory, self._offset = bytearray(), 0
            self.flat = torch.zeros(total, dtype=dtype, device=device)
        self.places = [_laid_out(self.flat, form, start) for form, start in zip(forms, self._starts, strict=True)]
        self.tail = self.flat[size:]
        self._users = sys.getrefcount(self._memory)

    def has(self, slot: int, parameter: torch.Tensor | None) -> bool:
        """Whether the gradient of a parameter lies in its place, for the bucket to move."""
        grad = None if parameter is None else parameter.grad
        if parameter is None or grad is None or grad.layout is not torch.strided or grad.numel() == 0:
            return False
        place = self.places[slot]
        here = grad.data_ptr() == place.data_ptr() and _is_alike(grad, place)
        return here and torch_private.hook_count(parameter) < 2

    def is_held(self, besides: int) -> bool:
        """Whether storages outside have this memory, besides so many gradients."""
        return sys.getrefcount(self._memory) != self._users + besides

    def give(self, slot: int, parameter: torch.Tensor) -> None:
        """Make a place the `grad` of its parameter."""
        count, dtype = parameter.numel(), self.flat.dtype
        if count == 0:
            parameter.grad = torch.zeros_like(parameter)
            return
        offset = self._offset + self._starts[slot] * dtype.itemsize
        own = torch.frombuffer(self._memory, dtype=dtype, count=count, offset=offset)
        parameter.grad = _laid_out(own, self._forms[slot], 0).data  # `data`: no view to autograd


def _laid_out(flat: torch.Tensor, form: _Form, start: int) -> torch.Tensor:
    """The place from `start` on with the strides of the parameter if it fills its memory, else contiguous."""
    extent = 1
    for stride, length in sorted(zip(form.stride, form.shape, strict=True)):
        if length != 1 and stride != extent:
            return flat[start : start + form.shape.numel()].view(form.shape)
        extent *= length
    return flat.as_strided(form.shape, form.stride, start)


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
