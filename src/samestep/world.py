"""The ranks of this run and the raw collectives between them.

The process groups are objects of our own, never torch's default group: the script and its frameworks must
believe that they are a single process (`torch.distributed.is_initialized()` stays False), else Ignite's metrics,
for one, would all-reduce what is already global.

Nothing here knows about autograd; `samestep.globalview.collectives` adds the gradients.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from samestep import exchange
from samestep.errors import PeerLost
from samestep.ledger import LEDGER
from samestep.threads import Talking
from samestep.waiting import CURRENT

#: Bytes of the first of the two messages in which objects travel.
_FIRST_BYTES = 1024


@dataclass(frozen=True)
class Groups:
    """Process groups of one kind of device.

    `script` carries the collectives that the script's own thread issues, in program order. `buckets` carries the
    gradient buckets, which start during backward: on a communicator of their own their order need not agree with
    that of the script's collectives.
    """

    script: Any
    buckets: Any


class World:
    """All ranks of a run as one of them sees it.

    Attributes:
        rank: this process's number, 0 … size-1; 0 is main.
        size: the number of ranks.
        groups: process groups by device type (`"cpu"` always, `"cuda"` with GPUs); empty with one rank.
        looks: whether to look whether a collective is done for a moment before sleeping until it is.
    """

    def __init__(
        self, rank: int = 0, size: int = 1, groups: dict[str, Groups] | None = None, looks: bool = False
    ) -> None:
        self.rank = rank
        self.size = size
        self.groups = groups or {}
        self.looks = looks
        self._talking = Talking()

    def split(self, rows: int) -> tuple[int, ...]:
        """Rows per rank of a batch of `rows`: contiguous blocks that differ by at most one (16 on 3: 6, 5, 5)."""
        base, extra = divmod(rows, self.size)
        return tuple(base + (r < extra) for r in range(self.size))

    # ------------------------------------------------------------------ collectives
    def all_reduce_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum `tensor` over the ranks in place (any dtype but bool) and return it; contiguous tensors only."""
        if self.size > 1:
            wide = _summable(tensor)
            self._finish(self._start_sum(self._group(tensor).script, wide), "all-reduce")
            if wide is not tensor:
                tensor.copy_(wide)
        return tensor

    def all_gather(self, local: torch.Tensor, dim: int, sizes: Sequence[int]) -> torch.Tensor:
        """Concatenate every rank's `local` along `dim`; `sizes[r]` is the length of rank r's block.

        Sent as bytes, so that every dtype can travel, padded to the longest block where the blocks differ.
        """
        if self.size == 1:
            return local
        rows_first = _stored(local).movedim(dim, 0).contiguous()
        row = rows_first.shape[1:]
        row_bytes = row.numel() * local.element_size()
        longest = max(sizes)
        if longest * row_bytes == 0:
            return local.new_empty((*local.shape[:dim], sum(sizes), *local.shape[dim + 1 :]))
        flat = rows_first.reshape(-1)
        if flat.stride(0) != 1:  # one element may keep any stride, and bytes can be viewed only at stride 1
            flat = flat.new_empty(flat.shape).copy_(flat)
        mine = flat.view(torch.uint8)
        if exchange.pays(local.device, longest * row_bytes, self.size):
            lengths = [n * row_bytes for n in sizes]
            everyone, work = exchange.gather(self._group(local).script, mine, lengths)
            self._finish(work, "all-gather")
            return _in_rows(everyone.view(local.dtype).view(sum(sizes), *row), dim)
        if len(set(sizes)) > 1:
            padded = mine.new_zeros(longest * row_bytes)
            padded[: mine.numel()] = mine
            mine = padded
        everyone = mine.new_empty(self.size * longest * row_bytes)
        self._finish(self._group(local).script._allgather_base(everyone, mine), "all-gather")
        blocks = everyone.view(local.dtype).view(self.size * longest, *row)
        if len(set(sizes)) > 1:
            blocks = torch.cat([blocks[r * longest : r * longest + n] for r, n in enumerate(sizes)])
        return _in_rows(blocks, dim)

    def broadcast_(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        """Overwrite a contiguous `tensor` by that of rank `source`."""
        if self.size > 1:
            options = torch.distributed.BroadcastOptions()
            options.rootRank = source
            options.rootTensor = 0
            as_bytes = tensor.view(-1).view(torch.uint8) if tensor.dim() else tensor.view(1).view(torch.uint8)
            self._finish(self._group(tensor).script.broadcast([as_bytes], options), "exchange from one rank")
        return tensor

    def all_gather_objects(self, value: Any) -> list[Any]:
        """Every rank's `value`, by rank; small picklable objects."""
        if self.size == 1:
            return [value]
        mine = pickle.dumps(value)
        # The first message has room for most: its length, and as much as fits.
        first = len(mine).to_bytes(8, "little") + mine[: _FIRST_BYTES - 8].ljust(_FIRST_BYTES - 8, b"\0")
        firsts = self._all_gather_bytes(first, [_FIRST_BYTES] * self.size)
        lengths = [int.from_bytes(part[:8], "little") for part in firsts]
        rests = [max(0, length - (_FIRST_BYTES - 8)) for length in lengths]
        seconds = self._all_gather_bytes(mine[_FIRST_BYTES - 8 :], rests) if any(rests) else [b""] * self.size
        parts = [a[8 : 8 + length] + b for a, b, length in zip(firsts, seconds, lengths, strict=True)]
        return [pickle.loads(part) for part in parts]

    def _all_gather_bytes(self, mine: bytes, lengths: list[int]) -> list[bytes]:
        numbers = torch.frombuffer(bytearray(mine), dtype=torch.uint8) if mine else torch.empty(0, dtype=torch.uint8)
        everyone = self.all_gather(numbers, 0, lengths)
        return [part.numpy().tobytes() for part in everyone.split(lengths)]

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.all_reduce_(torch.zeros(1))

    # ------------------------------------------------------------------ asynchronous sums
    def start_script_sum(self, tensor: torch.Tensor) -> Any:
        """Start summing a contiguous tensor over the ranks in the script's order; `finish_sum` waits for it."""
        return self._start_sum(self._group(tensor).script, tensor) if self.size > 1 else None

    def start_gather(self, flat: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Start gathering every rank's 1-dimensional tensor of the same length, a number at least; what it returns
        waits for it: shape (ranks, length). On the CPU small ones travel meanwhile."""
        if self.size > 1 and exchange.pays(flat.device, flat.numel() * flat.element_size(), self.size):
            lengths = [flat.numel() * flat.element_size()] * self.size
            everyone, work = exchange.gather(self._group(flat).script, flat.view(torch.uint8), lengths)
        else:
            everyone, work = self.all_gather(flat, 0, [flat.numel()] * self.size), None

        def finish() -> torch.Tensor:
            self._finish(work, "all-gather")
            return everyone.view(flat.dtype).view(self.size, -1)

        return finish

    def start_bucket_sum(self, flat: torch.Tensor) -> Any:
        """Start summing `flat` over the ranks on the buckets' communicator; `finish_sum` waits for it."""
        return self._start_sum(self._group(flat).buckets, flat)

    def finish_sum(self, work: Any, what: str = "all-reduce of gradients") -> None:
        """Wait for a sum started before; `what` it is, should it never come."""
        self._finish(work, what)

    def _start_sum(self, group: Any, tensor: torch.Tensor) -> Any:
        if tensor.numel() > 1 and exchange.pays(tensor.device, tensor.numel() * tensor.element_size(), self.size):
            return exchange.start_sum(group, tensor, self.size)
        return group.allreduce([tensor])

    def _group(self, tensor: torch.Tensor) -> Groups:
        self._talking.check()
        return self.groups[tensor.device.type]

    def _finish(self, work: Any, what: str) -> None:
        if work is None:
            return
        began = time.perf_counter()
        CURRENT.what, CURRENT.count, CURRENT.since = what, CURRENT.count + 1, time.monotonic()
        try:
            if self.looks:
                exchange.look(work)
            work.wait()
        except RuntimeError as error:
            raise PeerLost(f"rank {self.rank} lost its peers in an {what}: {error}") from error
        finally:
            CURRENT.since = 0.0
        LEDGER.communication_s += time.perf_counter() - began


def _in_rows(rows_first: torch.Tensor, dim: int) -> torch.Tensor:
    """Gathered rows as a tensor of its own, no view of the bytes in which they came."""
    return rows_first.movedim(0, dim).contiguous() if dim else rows_first.data


def _stored(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` with its values in memory: autograd hands out zeros without storage, and lazy conjugates."""
    plain = tensor.detach()
    if plain._is_zerotensor():
        return torch.zeros(plain.shape, dtype=plain.dtype, device=plain.device)
    return plain.resolve_conj().resolve_neg()


def fresh(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy without history, to be summed in place."""
    return _stored(tensor).clone(memory_format=torch.contiguous_format)


def _summable(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` in a dtype that Gloo and NCCL can add (they refuse int16, and add bools as logical or)."""
    if tensor.dtype in (torch.int16, torch.bool):
        return tensor.to(torch.int64)
    return tensor


_current = World()


def current() -> World:
    """The world of this process: one rank unless Samestep launched it."""
    return _current


def install(world: World) -> None:
    """Make `world` the one of this process."""
    global _current
    _current = world
