"""`torch.nn.parallel`'s building blocks: `scatter`, `replicate`, `parallel_apply`, `gather`, called directly.

A script that calls them sees as many chunks, replicas and outputs as it names devices, with the sizes it asks for. The
rows stay where they are: a chunk is a slice of the sharded batch, and chunks that still make up the batch are computed
in one call of the module, on every rank its own rows. So the numbers are those of one device, for uneven chunks too.
Chunks that no longer make up a batch (a script changed them) are computed one after the other.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.parallel
from torch import nn

from samestep import torch_private, world
from samestep.errors import SamestepError
from samestep.globalview.placement import Shard
from samestep.globalview.tensor import WHERE, GlobalTensor, shard_whole
from samestep.ledger import LEDGER
from samestep.nest import map_tensors, skeleton, tensors
from samestep.notice import notice_once
from samestep.parallel import device_scalars

#: Replica → the module that it was made from.
_ORIGINALS: MutableMapping[nn.Module, nn.Module] = torch_private.by_identity()
#: Class → the same class as that of a replica.
_KEPT: MutableMapping[Any, Any] = torch_private.by_identity()


class _Chunk(NamedTuple):
    """Which part of a tensor another one is; an attribute of the part."""

    whole: torch.Tensor
    dim: int
    start: int
    stop: int
    version: int


class _Entry(NamedTuple):
    """Which device's output of a module a tensor is; `together` gives what is gathered from all of them."""

    output: torch.Tensor
    number: int
    devices: int
    together: Callable[[], torch.Tensor]


def _mark(tensor: torch.Tensor, mark: _Chunk | _Entry) -> torch.Tensor:
    tensor._samestep_part = mark  # type: ignore[attr-defined]
    return tensor


def _mark_of(tensor: torch.Tensor) -> Any:
    return getattr(tensor, "_samestep_part", None)


# ---------------------------------------------------------------------- scatter
def shard_rows(nest: Any, dim: int) -> Any:
    """Whole tensors of a nest as shards along `dim`: all that have as many rows as the first of them."""
    found = [t for t in tensors(nest) if t.dim() > dim]
    if WHERE.region or any(type(t) is GlobalTensor and isinstance(t._placement, Shard) for t in found) or not found:
        return nest
    rows, here = found[0].size(dim), world.current()
    if rows < here.size:
        LEDGER.whole_batches["fewer rows than ranks"] += 1
        return nest

    def shard(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() <= dim or tensor.size(dim) != rows:
            return tensor
        whole = tensor.whole() if type(tensor) is GlobalTensor else tensor
        return shard_whole(whole, dim, here.split(rows))

    LEDGER.cuts[here.split(rows)] += 1
    return map_tensors(shard, nest)


def to_device(nest: Any) -> Any:
    """Tensors in host memory on this rank's GPU, where `nn.DataParallel` brings its inputs."""
    if not torch.cuda.is_available():
        return nest
    device = torch.device("cuda", torch.cuda.current_device())
    return map_tensors(lambda t: t.to(device, non_blocking=True) if t.device.type == "cpu" else t, nest)


def scatter_tensor(
    target_gpus: Sequence[Any], chunk_sizes: Sequence[int] | None, dim: int, tensor: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Takes the place of `torch.nn.parallel._functions.Scatter.apply`: the chunks of a tensor, by device."""
    whole = to_device(shard_rows(tensor, dim))
    dim %= whole.dim()
    rows = whole.size(dim)
    if chunk_sizes is None:
        size = max(1, -(-rows // max(1, len(target_gpus))))  # as torch.chunk
        chunk_sizes = [min(size, rows - start) for start in range(0, rows, size)] or [0]
    chunks, start = [], 0
    for size in chunk_sizes:
        chunks.append(_slice(whole, dim, start, start + size))
        start += size
    return tuple(chunks)


def _slice(whole: torch.Tensor, dim: int, start: int, stop: int) -> torch.Tensor:
    part = whole[(*(slice(None),) * dim, slice(start, stop))]
    # The tensor itself must not be marked as a part of itself: it would never be freed.
    part = part.view_as(part) if part is whole else part
    return _mark(part, _Chunk(whole, dim, start, stop, _version(whole)))


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The tensor whose parts these are, in order and all of it; None if they are not."""
    marks = [_mark_of(t) for t in parts]
    first = marks[0]
    if isinstance(first, _Entry):
        alike = all(
            isinstance(m, _Entry) and m.output is first.output and m.number == i and m.devices == len(marks)
            for i, m in enumerate(marks)
        )
        return first.together() if alike else None
    if not isinstance(first, _Chunk):
        return None
    place = 0
    for mark in marks:
        if not isinstance(mark, _Chunk) or mark.whole is not first.whole or mark.start != place:
            return None
        place = mark.stop
    unchanged = all(_version(t) == first.version for t in (first.whole, *parts))
    return first.whole if place == first.whole.size(first.dim) and unchanged else None


# ---------------------------------------------------------------------- replicate and apply
def replicate(network: nn.Module, devices: Sequence[Any], detach: bool = False) -> list[nn.Module]:
    """Takes the place of `torch.nn.parallel.replicate`: copies of the modules that share the parameters."""
    return [_replica(network) for _ in devices]


def _replica(network: nn.Module) -> nn.Module:
    copies: dict[nn.Module, Any] = {}
    for module in network.modules():
        copy: Any = module._replicate_for_data_parallel()
        copy._parameters = dict(module._parameters)
        copies[module] = copy
    for module, copy in copies.items():
        copy._modules = {key: None if child is None else copies[child] for key, child in module._modules.items()}
    replica: nn.Module = copies[network]
    _ORIGINALS[replica] = _ORIGINALS.get(network, network)
    replica.__class__ = _kept_to_main_thread(type(network))
    return replica


def _kept_to_main_thread(kind: Any) -> Any:
    """The same class, whose call from another thread raises before it sends anything to other ranks."""
    known = _KEPT.get(kind)
    if known is not None:
        return known

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is not threading.main_thread() and not WHERE.region:
            raise SamestepError(
                f"a replica of {kind.__name__} was called from a thread of the script. Under samestep each device is a "
                "process, and threads of several processes cannot be kept in one order. Call "
                "torch.nn.parallel.parallel_apply(replicas, inputs), or the module itself with the whole batch."
            )
        return kind.__call__(self, *args, **kwargs)

    kept = _KEPT[kind] = type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})
    _KEPT[kept] = kept
    return kept


def parallel_apply(
    modules: Sequence[nn.Module],
    inputs: Sequence[Any],
    kwargs_tup: Sequence[dict[str, Any]] | None = None,
    devices: Sequence[Any] | None = None,
) -> list[Any]:
    """Takes the place of `torch.nn.parallel.parallel_apply`."""
    if len(modules) != len(inputs):
        raise AssertionError(f"The number of modules {len(modules)} is not equal to the number of inputs {len(inputs)}")
    if kwargs_tup is not None and len(modules) != len(kwargs_tup):
        raise AssertionError(
            f"The number of modules {len(modules)} is not equal to the number of kwargs_tup {len(kwargs_tup)}"
        )
    calls = [
        (i if isinstance(i, (tuple, list)) else (i,), k)
        for i, k in zip(inputs, kwargs_tup or [{}] * len(modules), strict=True)
    ]
    filled = [call for call in calls if any(True for _ in tensors(call))]
    if filled and len(filled) < len(calls):  # fewer rows than devices, and flags for all of them
        modules, calls = modules[: len(filled)], filled
    originals = [_ORIGINALS.get(m, m) for m in modules]
    if len(modules) > 1 and all(m is originals[0] for m in originals):
        together = _joined_calls(calls)
        if together is not None:
            args, kwargs, dim = together
            return _output_parts(originals[0](*args, **kwargs), originals[0], args, kwargs, dim, _sizes(calls, dim))
        if WHERE.region:  # ranks might make different numbers of calls; the module around is opened instead
            raise RuntimeError("parallel_apply was given inputs that are not the chunks of one batch")
        notice_once(
            f"the inputs that parallel_apply was given for {type(originals[0]).__name__} are not the chunks of one "
            "batch that torch.nn.parallel.scatter made; they are computed one after the other, and batch norm sees "
            "each by itself, as with nn.DataParallel."
        )
    return [m(*args, **kwargs) for m, (args, kwargs) in zip(modules, calls, strict=True)]


def _joined_calls(calls: Sequence[Any]) -> tuple[Any, Any, int] | None:
    """The arguments of one call for the whole batch, and the dimension of its rows."""
    if any(skeleton(call) != skeleton(calls[0]) for call in calls[1:]):
        return None
    dims: list[int] = []
    columns = []
    for column in zip(*(list(tensors(call)) for call in calls), strict=True):
        mark = _mark_of(column[0])
        whole = joined(column)
        if whole is None and all(t is column[0] for t in column):
            whole = column[0]  # the same for all devices
        elif isinstance(mark, _Chunk):
            dims.append(mark.dim)
        if whole is None:
            return None
        columns.append(whole)
    if len(set(dims)) != 1:
        return None
    order = iter(columns)
    args, kwargs = map_tensors(lambda t: next(order), calls[0])
    return args, kwargs, dims[0]


def _sizes(calls: Sequence[Any], dim: int) -> list[int]:
    """Rows of each call."""
    marks = [next(m for t in tensors(call) if isinstance(m := _mark_of(t), _Chunk)) for call in calls]
    return [m.stop - m.start for m in marks]


def _output_parts(output: Any, module: nn.Module, args: Any, kwargs: Any, dim: int, sizes: list[int]) -> list[Any]:
    """A module's output for the whole batch as what each device would have of it."""
    rows, devices = sum(sizes), len(sizes)
    found = list(tensors(output))
    kinds: list[str] = [device_scalars.CONSTANT] * len(found)
    if any(_rows_dim(t, rows, dim) is None for t in found):
        kinds = device_scalars.kinds_of(output, module, args, kwargs, dim)
    parts = [_parts(t, kind, rows, dim, sizes) for t, kind in zip(found, kinds, strict=True)]

    def of_device(number: int) -> Any:
        order = iter(parts)
        return map_tensors(lambda t: next(order)[number], output)

    return [of_device(number) for number in range(devices)]


def _rows_dim(tensor: torch.Tensor, rows: int, dim: int) -> int | None:
    """The dimension in which an output keeps the rows."""
    if type(tensor) is GlobalTensor and isinstance(tensor._placement, Shard):
        return tensor._placement.dim if tensor._placement.total % rows == 0 else None
    sharded = rows >= world.current().size and not WHERE.region
    if sharded or tensor.dim() <= dim or tensor.size(dim) == 0 or tensor.size(dim) % rows:
        return None
    return dim


def _parts(tensor: torch.Tensor, kind: str, rows: int, dim: int, sizes: list[int]) -> list[torch.Tensor]:
    at = _rows_dim(tensor, rows, dim)
    devices = len(sizes)
    if at is not None:
        per_row = tensor.size(at) // rows
        bounds = [sum(sizes[:i]) * per_row for i in range(devices + 1)]
        return [_slice(tensor, at, bounds[i], bounds[i + 1]) for i in range(devices)]
    if kind == device_scalars.CONSTANT or (tensor.dim() and tensor.size(min(dim, tensor.dim() - 1)) != 1):
        return [_mark(t, _Entry(tensor, i, devices, lambda: tensor)) for i, t in enumerate(_copies(tensor, devices))]

    def vector() -> torch.Tensor:
        return device_scalars.vector(tensor, kind, dim, devices)

    pieces = device_scalars.pieces(tensor, kind, devices)
    return [_mark(t, _Entry(tensor, i, devices, vector)) for i, t in enumerate(pieces)]


def _copies(tensor: torch.Tensor, devices: int) -> list[torch.Tensor]:
    return [tensor.view_as(tensor) for _ in range(devices)]


# ---------------------------------------------------------------------- gather
def gather_tensors(target_device: Any, dim: int, *parts: torch.Tensor) -> torch.Tensor:
    """Takes the place of `torch.nn.parallel._functions.Gather.apply`."""
    whole: Any = joined(parts)
    if whole is None:
        whole = torch.stack(parts) if all(t.dim() == 0 for t in parts) else torch.cat(parts, dim)
    result: torch.Tensor = on_output_device(whole, target_device)
    return result


def on_output_device(nest: Any, device: Any) -> Any:
    """A nest in host memory if that was asked for; else where it is."""
    to_host = device == -1 or (
        device is not None and not isinstance(device, int) and torch.device(device).type == "cpu"
    )
    return map_tensors(lambda t: t.cpu(), nest) if to_host else nest


def install() -> None:
    """Let torch's building blocks be these."""
    functions: Any = sys.modules["torch.nn.parallel._functions"]
    functions.Scatter.apply = staticmethod(scatter_tensor)
    functions.Gather.apply = staticmethod(gather_tensors)
    for name, function in (("replicate", replicate), ("parallel_apply", parallel_apply)):
        for home in ("", f".{name}", ".data_parallel"):
            setattr(sys.modules[f"torch.nn.parallel{home}"], name, function)
    device_scalars.install()
