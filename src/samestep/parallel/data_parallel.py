"""`DataParallel`: a module that is a region by decree."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from samestep import world
from samestep.globalview.placement import Shard
from samestep.globalview.tensor import WHERE, GlobalTensor, shard_whole
from samestep.ledger import LEDGER
from samestep.nest import map_tensors, tensors

_TorchDataParallel = nn.DataParallel


class DataParallel(_TorchDataParallel):  # type: ignore[type-arg]
    """Runs a module on every device's share of the batch, with the numbers of one device.

    The same class as `torch.nn.DataParallel` under `samestep run`: `.module`, the `module.` keys of its state_dict
    and `isinstance(m, nn.DataParallel)` are as there. Without the launcher there is one device, and it only calls
    the module.

    Args:
        module: the module to run.
        device_ids: accepted for compatibility; the devices are those of the run.
        output_device: accepted for compatibility; outputs are global tensors on every rank.
        dim: the dimension of the batch in the inputs and outputs.

    Example:
        >>> model = DataParallel(nn.Linear(4, 2))
        >>> model(torch.zeros(3, 4)).shape
        torch.Size([3, 2])
    """

    def __init__(self, module: nn.Module, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
        nn.Module.__init__(self)
        self.dim = dim
        self.module = module
        self.device_ids = [_index(d) for d in device_ids] if device_ids is not None else _all_devices()
        self.output_device = _index(output_device if output_device is not None else (self.device_ids or [0])[0])

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if WHERE.region or world.current().size == 1:
            return self.module(*inputs, **kwargs)
        inputs, kwargs = _sharded((inputs, kwargs), self.dim)
        return self.module(*inputs, **kwargs)


def _index(device: Any) -> int:
    if isinstance(device, int):
        return device
    return torch.device(device).index or 0


def _all_devices() -> list[int]:
    return list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []


def _sharded(nest: Any, dim: int) -> Any:
    """Whole inputs as shards along `dim`, all that have as many rows as the first of them."""
    found = [t for t in tensors(nest) if t.dim() > dim]
    if any(type(t) is GlobalTensor and isinstance(t._placement, Shard) for t in found) or not found:
        return nest
    rows, here = found[0].size(dim), world.current()
    if rows < here.size:
        LEDGER.whole_batches["fewer rows than ranks"] += 1
        return nest

    def shard(tensor: torch.Tensor) -> torch.Tensor:
        if type(tensor) is GlobalTensor or tensor.dim() <= dim or tensor.size(dim) != rows:
            return tensor
        return shard_whole(tensor, dim, here.split(rows))

    LEDGER.cuts[here.split(rows)] += 1
    return map_tensors(shard, nest)


def install() -> None:
    """Let `nn.DataParallel` in a script be this class."""
    nn.DataParallel = DataParallel  # type: ignore[misc]
    nn.parallel.DataParallel = DataParallel  # type: ignore[misc]
    nn.parallel.data_parallel.DataParallel = DataParallel  # type: ignore[attr-defined]
