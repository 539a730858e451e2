"""Gradient reduction: parameters of regions get the gradient of the global batch.

Inside a region gradients are N times the true ones, so they are *averaged* over the ranks: the batch's part is then
summed exactly whatever the shard sizes, and what is already whole (a penalty computed from the parameters by the
script, a gradient accumulated by an earlier backward) averages to itself.

Gradients are copied into flat buckets as backward produces them; a full bucket is summed while backward goes on. The
remaining ones follow when backward ends, in an order that is the same on every rank.
`torch.nn.parallel.DistributedDataParallel` works alike and is the yardstick; it is not used because it refuses or
gets wrong several forwards per backward, branches that differ between ranks, and parameters shared by two modules.

A sum may also be owed: after `with model.no_sync():`, and after a backward that raised in the middle, gradients hold
the rank's own part. What is owed is paid by the next backward that reaches the same parameters, or when somebody looks
at the gradient of any tensor, whichever comes first.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from samestep import torch_private, world
from samestep.globalview import autograd
from samestep.globalview.autograd import RUNNING
from samestep.parallel.bucket import Bucket, grouped

#: Buckets of a region from which on it is asked which of them are of use.
MOST_COMPANIONS = 8


class _Pass:
    """One backward: the buckets that take part, in the order in which they are summed."""

    def __init__(self) -> None:
        self.buckets: list[Bucket] = []
        self.started = 0

    def start_ready(self) -> None:
        """Start the full buckets, in order, like DDP: so ranks whose gradients arrive in different orders agree."""
        while self.started < len(self.buckets) and self.buckets[self.started].waiting == 0:
            self.buckets[self.started].start()
            self.started += 1


class Reducer:
    """All buckets of a rank and the backward passes that are under way."""

    def __init__(self) -> None:
        # By identity: tensors compare element by element, so they cannot be keys themselves.
        self._slots: dict[int, tuple[Bucket, int]] = {}
        #: By graph task: a checkpointed block that is computed again has a backward of its own within another.
        self._passes: dict[int, _Pass] = {}
        #: Backward passes that raised, whose sums are half started.
        self._torn: list[_Pass] = []
        #: Buckets whose gradients are the rank's own part, in the same order on every rank.
        self._owed: list[Bucket] = []
        #: For each `no_sync` around us, the parameters that it is for.
        self._deferring: list[set[int]] = []

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` is a parameter that gets gradients from inside regions."""
        return id(tensor) in self._slots

    def register(self, parameters: Iterable[torch.nn.Parameter]) -> list[Bucket]:
        """The buckets of these parameters; new ones are made for parameters not seen before."""
        parameters = [p for p in parameters if p.requires_grad]
        fresh = [p for p in parameters if id(p) not in self._slots]
        for group in grouped(reversed(fresh)):
            bucket = Bucket(group)
            for slot, p in enumerate(group):
                self._slots[id(p)] = (bucket, slot)
                weakref.finalize(p, self._forget, id(p))
                p.register_post_accumulate_grad_hook(self._arrived)
        found: dict[int, Bucket] = {}
        for p in reversed(parameters):
            bucket = self._slots[id(p)][0]
            found[id(bucket)] = bucket
        buckets = list(found.values())
        for bucket in buckets:
            bucket.companions.extend(b for b in buckets if not any(b is other for other in bucket.companions))
            if len(bucket.companions) > MOST_COMPANIONS:
                _part_from_dead(bucket)
        return buckets

    def _forget(self, identity: int) -> None:
        """A parameter is no more."""
        entry = self._slots.pop(identity, None)
        if entry is not None:
            entry[0].release()

    def together(self, parameter: torch.Tensor) -> list[Bucket]:
        """The buckets of all regions that this parameter belongs to."""
        entry = self._slots.get(id(parameter))
        return [] if entry is None else entry[0].companions

    # ------------------------------------------------------------------ during backward
    def activate(self, buckets: list[Bucket]) -> None:
        """A region's outputs got their gradient: its buckets take part in this backward, on every rank."""
        if not RUNNING.accumulates:
            return  # torch.autograd.grad: no parameter's `grad` changes
        task = torch_private.current_graph_task()
        current = self._passes.get(task)
        if current is None:
            if self._torn:
                self._settle()
            current = self._passes[task] = _Pass()
            torch_private.after_backward(lambda: self._flush(task))
        for bucket in buckets:
            if bucket.active:
                continue
            if self._is_deferred(bucket):
                self._owe([bucket])
                continue
            bucket.begin()
            bucket.active = True
            current.buckets.append(bucket)

    def _is_deferred(self, bucket: Bucket) -> bool:
        return any(id(p) in ids for ids in self._deferring for ref in bucket.parameters if (p := ref()) is not None)

    def _arrived(self, parameter: torch.Tensor) -> None:
        entry = self._slots.get(id(parameter))
        if entry is None or not self._passes:
            return
        bucket, slot = entry
        bucket.mark(slot, parameter)
        for running in self._passes.values():
            running.start_ready()

    def _flush(self, task: int) -> None:
        done = self._passes.pop(task, None)
        if done is None:
            return
        _sum(done.buckets, done.started)
        if self._owed:
            self._owed = [b for b in self._owed if not any(b is other for other in done.buckets)]
            self._watch()

    # ------------------------------------------------------------------ owed sums
    @contextlib.contextmanager
    def deferred(self, parameters: Iterable[torch.Tensor]) -> Iterator[None]:
        """Within: backward leaves the sums for these parameters' buckets owed."""
        self._deferring.append({id(p) for p in parameters})
        try:
            yield
        finally:
            self._deferring.pop()

    def backward_raised(self) -> None:
        """The outermost backward ended by an exception. Nothing is sent: perhaps it ends this rank alone."""
        self._torn.extend(self._passes.values())
        self._passes.clear()
        self._watch()

    def _settle(self) -> None:
        """Bring the sums that a backward which raised has started to an end, on every rank as many."""
        here = world.current()
        torn, self._torn = self._torn, []
        mine = torch.tensor([t.started for t in torn])
        everyone = here.all_gather(mine, 0, [len(torn)] * here.size).view(here.size, -1)
        for unfinished, most in zip(torn, everyone.max(0).values.tolist(), strict=True):
            _sum(unfinished.buckets[:most], unfinished.started)
            for bucket in unfinished.buckets[most:]:
                bucket.put_back()
                bucket.reset()
            self._owe(unfinished.buckets[most:])

    def _owe(self, buckets: list[Bucket]) -> None:
        self._owed.extend(b for b in buckets if not any(b is other for other in self._owed))
        self._watch()

    def pay(self) -> None:
        """Do the sums that are owed. Collective."""
        if self._torn:
            self._settle()
        owed, self._owed = self._owed, []
        for bucket in owed:
            bucket.begin()
        _sum(owed, 0)
        self._watch()

    def _watch(self) -> None:
        """Let gradients be looked at through `_looked_at` as long as something is owed."""
        _GRADIENTS.watched_by(self if self._owed or self._torn else None)

    def looked_at(self) -> None:
        """Somebody reads a gradient."""
        if torch_private.current_graph_task() == -1:
            with _GRADIENTS.unwatched():
                self.pay()


def _part_from_dead(bucket: Bucket) -> None:
    """Forget the buckets whose parameters are gone on every rank, as those of heads that were replaced. Collective."""
    here = world.current()
    dead = torch.tensor([all(ref() is None for ref in b.parameters) for b in bucket.companions], dtype=torch.int64)
    gone = here.all_reduce_(dead).tolist()
    bucket.companions = [b for b, count in zip(bucket.companions, gone, strict=True) if count < here.size]


def _sum(buckets: list[Bucket], started: int) -> None:
    """Sum the gradients of buckets, of which the first `started` are under way."""
    for bucket in buckets[started:]:
        bucket.start()
    for bucket in buckets:
        bucket.finish()
        _add_sparse(bucket)
        bucket.reset()


def _add_sparse(bucket: Bucket) -> None:
    """Sparse gradients (embeddings): gather every rank's rows. The parameters' layouts agree on all ranks."""
    here = world.current()
    for ref in bucket.parameters:
        p = ref()
        if p is None or p.grad is None or not p.grad.is_sparse:
            continue
        grad = p.grad.coalesce()
        counts = here.all_gather(torch.tensor([grad._nnz()]), 0, [1] * here.size).tolist()
        indices = here.all_gather(grad.indices(), 1, counts)
        values = here.all_gather(grad.values(), 0, counts) / here.size
        with torch.no_grad():  # the same object: the script may hold it
            p.grad.copy_(torch.sparse_coo_tensor(indices, values, grad.shape, check_invariants=False).coalesce())


class _Gradients:
    """`torch.Tensor.grad`, replaced while a sum is owed, so that it is paid before anybody sees a gradient."""

    def __init__(self) -> None:
        self._usual: Any = None
        self._watcher: Reducer | None = None

    def watched_by(self, watcher: Reducer | None) -> None:
        if watcher is self._watcher:
            return
        self._watcher = watcher
        tensor: Any = torch.Tensor
        if watcher is None:
            self._put_back()
            return
        usual = self._usual = tensor.__dict__.get("grad")
        inherited: Any = torch._C.TensorBase.__dict__["grad"]
        read = inherited.__get__ if usual is None else usual.__get__

        def get(value: torch.Tensor) -> Any:
            watcher.looked_at()
            return read(value)

        write = usual or inherited

        # Who writes drops what is there: it must be there before, or it would come back.
        def put(value: torch.Tensor, new: Any) -> None:
            watcher.looked_at()
            write.__set__(value, new)

        def drop(value: torch.Tensor) -> None:
            watcher.looked_at()
            write.__delete__(value)

        tensor.grad = property(get, put, drop)

    def _put_back(self) -> None:
        tensor: Any = torch.Tensor
        if self._usual is None:
            del tensor.grad
        else:
            tensor.grad = self._usual

    @contextlib.contextmanager
    def unwatched(self) -> Iterator[None]:
        """Within: gradients are read as they are."""
        watcher = self._watcher
        self.watched_by(None)
        try:
            yield
        except BaseException:
            self.watched_by(watcher)
            raise


_GRADIENTS = _Gradients()
REDUCER = Reducer()


def install() -> None:
    """Let backward passes report to the reducer."""
    autograd.takes_region_gradients = REDUCER.owns
    autograd.backward_raised = REDUCER.backward_raised
