"""The process groups of a run: Gloo for the CPU, NCCL for GPUs, Gloo by way of the CPU where NCCL cannot be had."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from samestep.devices.selection import DeviceSelection
from samestep.world import Groups

# Typed loosely: torch's stubs leave out the process groups and stores that are made here directly.
dist: Any = torch.distributed

#: A collective waits for hours if need be (a rank may validate for long); a dead peer ends it at once.
TIMEOUT = timedelta(days=2)


def make_groups(rank: int, size: int, selection: DeviceSelection, store: Any) -> dict[str, Groups]:
    """The process groups by device type. Those of an accelerator are made when a tensor of its kind first needs them:
    until then nothing has touched the device, as in one process."""
    groups = _OnDemand()
    groups["cpu"] = Groups(_gloo(rank, size, store, "script"), _gloo(rank, size, store, "buckets"))
    if selection.gloo:
        script, buckets = (_gloo(rank, size, store, f"{selection.kind}-{each}") for each in ("script", "buckets"))
        groups[selection.kind] = Groups(Staged(script), Staged(buckets))
    elif selection.kind == "cuda":
        groups.makers["cuda"] = lambda: Groups(_nccl(rank, size, store, "script"), _nccl(rank, size, store, "buckets"))
    return groups


class _OnDemand(dict[str, Groups]):
    """Process groups by device type, some of them made when they are first asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.makers: dict[str, Callable[[], Groups]] = {}
        self._lock = threading.Lock()  # backward asks from a thread of its own

    def __missing__(self, kind: str) -> Groups:
        with self._lock:
            if kind not in self:
                if kind not in self.makers:
                    raise KeyError(kind)
                self[kind] = self.makers[kind]()
        return self[kind]


def _gloo(rank: int, size: int, store: Any, purpose: str) -> Any:
    options = dist.ProcessGroupGloo._Options()
    # Bound to loopback by address: nothing of a run on one machine is to be reached from outside.
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = TIMEOUT
    return dist.ProcessGroupGloo(dist.PrefixStore(f"gloo-{purpose}", store), rank, size, options)


def _nccl(rank: int, size: int, store: Any, purpose: str) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = TIMEOUT
    return dist.ProcessGroupNCCL(dist.PrefixStore(f"nccl-{purpose}", store), rank, size, options)


class Staged:
    """A process group for tensors on devices that reach each other only through the CPU's memory.

    NCCL refuses two ranks on one GPU and slices of one GPU. Each collective copies its tensors to the CPU when it
    starts, and the result back when it is waited for. Slow, and right.
    """

    def __init__(self, group: Any) -> None:
        self._group = group

    def allreduce(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Start adding up each tensor over the ranks, in place."""
        copies = [tensor.cpu() for tensor in tensors]
        return _Work(self._group.allreduce(copies), tensors, copies)

    def _allgather_base(self, output: torch.Tensor, mine: torch.Tensor) -> Any:
        """Start gathering every rank's `mine` in `output`."""
        gathered = torch.empty(output.shape, dtype=output.dtype)
        return _Work(self._group._allgather_base(gathered, mine.cpu()), [output], [gathered])

    def alltoall_base(self, output: torch.Tensor, mine: torch.Tensor, received: list[int], sent: list[int]) -> Any:
        """Start sending the rank's blocks of `mine`, of lengths `sent`, to every rank."""
        gathered = torch.empty(output.shape, dtype=output.dtype)
        return _Work(self._group.alltoall_base(gathered, mine.cpu(), received, sent), [output], [gathered])

    def broadcast(self, tensors: Sequence[torch.Tensor], options: Any) -> Any:
        """Start overwriting each tensor by that of the root."""
        copies = [tensor.cpu() for tensor in tensors]
        return _Work(self._group.broadcast(copies, options), tensors, copies)


class _Work:
    """A collective that has been started, and where its result goes."""

    def __init__(self, work: Any, targets: Sequence[torch.Tensor], copies: Sequence[torch.Tensor]) -> None:
        self._work = work
        self._targets = targets
        self._copies = copies

    def wait(self) -> bool:
        """Wait until the result is on the device."""
        done = bool(self._work.wait())
        with torch.no_grad():
            for target, copy in zip(self._targets, self._copies, strict=True):
                if target is not copy:
                    target.copy_(copy)
        return done
