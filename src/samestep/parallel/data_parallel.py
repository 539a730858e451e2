"""`nn.DataParallel`: a module that is given its batch in shards.

Torch's class stays the class: only its methods are replaced while Samestep runs. So subclasses, `isinstance`, whole
models that were pickled, and models that are pickled now and loaded later without Samestep, are what they always were.

A subclass that overrides how rows are dealt out or outputs are collected is run as on one device, which its code allows
for and whose numbers are wanted: it sees a single device, the batch as one chunk and one replica. Only a class that
sizes the chunks itself (balanced variants, which divide by the number of the *other* devices) sees all of them, and
`samestep.parallel.scatter_gather` puts its chunks together again.
"""

from __future__ import annotations

import contextlib
import copy
import copyreg
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed
import torch.nn.parallel
from torch import nn

from samestep import world
from samestep.errors import SamestepError
from samestep.globalview.tensor import WHERE
from samestep.parallel import compiled, device_scalars, reducer, scatter_gather

_STEPS = ("forward", "scatter", "replicate", "parallel_apply", "gather")
#: The ids that the script gave, where torch's own attribute must read as without GPUs once the model is pickled.
_IDS = "_samestep_device_ids"


def _init(self: Any, module: nn.Module, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
    nn.Module.__init__(self)
    ids = [_index(d) for d in device_ids] if device_ids is not None else list(range(torch.cuda.device_count()))
    if torch.cuda.is_available():
        _check_ids(ids)
    if _as_one_device(type(self)):
        ids = ids[:1]
    self.dim = dim
    self.module = module
    self.device_ids = ids
    self.output_device = _index(output_device if output_device is not None else (ids or [0])[0])
    if torch.cuda.is_available():
        self.src_device_obj = torch.device("cuda", ids[0])
        if len(ids) == 1:
            module.to(self.src_device_obj)


def _index(device: Any) -> int:
    if isinstance(device, int):
        return device
    device = torch.device(device)
    return -1 if device.type == "cpu" else device.index or 0


def _check_ids(ids: list[int]) -> None:
    there = torch.cuda.device_count()
    if not ids or any(not 0 <= i < there for i in ids):
        raise SamestepError(
            f"DataParallel(…, device_ids={ids}): this run has {there} device(s), numbered from 0. Give ids below "
            f"{there}, leave device_ids out to use all, or start the run with other --devices."
        )


def _overridden(kind: type) -> list[str]:
    return [name for name in _STEPS if getattr(kind, name) not in (getattr(nn.DataParallel, name), _OURS.get(name))]


def _as_one_device(kind: type) -> bool:
    """Whether a class has steps of its own and takes the way that it has for one device."""
    return bool(_overridden(kind)) and not _sizes_chunks(kind)


def _sizes_chunks(kind: type) -> bool:
    """Whether a class decides how many rows each device gets."""
    code = getattr(getattr(kind, "scatter", None), "__code__", None)
    return code is not None and "chunk_sizes" in (*code.co_varnames, *code.co_cellvars, *code.co_names)


def _forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
    if world.current().size == 1:
        return self.module(*inputs, **kwargs)
    own_steps = [name for name in _overridden(type(self)) if name != "forward"]
    if not self.device_ids or not own_steps:
        return run(self.module, inputs, kwargs, self.dim, len(self.device_ids), getattr(self, "output_device", None))
    # The steps of torch's own `forward`, of which the class has replaced some.
    chunks, chunk_kwargs = self.scatter(inputs, kwargs, self.device_ids)
    if not chunks and not chunk_kwargs:
        chunks, chunk_kwargs = ((),), ({},)
    if len(self.device_ids) == 1:
        return self.module(*chunks[0], **chunk_kwargs[0])
    replicas = self.replicate(self.module, self.device_ids[: len(chunks)])
    outputs = self.parallel_apply(replicas, chunks, chunk_kwargs)
    return self.gather(outputs, self.output_device)


def run(module: nn.Module, inputs: Any, kwargs: Any, dim: int, devices: int, output_device: Any) -> Any:
    """A module's output for a batch that is dealt out along `dim`; scalars as a vector of `devices` entries."""
    if WHERE.region:
        return module(*inputs, **kwargs)
    inputs, kwargs = scatter_gather.to_device(scatter_gather.shard_rows((inputs, kwargs), dim))
    output = module(*inputs, **kwargs)
    output = device_scalars.per_device(output, module, inputs, kwargs, dim, devices)
    return scatter_gather.on_output_device(output, output_device)


def data_parallel(
    module: nn.Module,
    inputs: Any,
    device_ids: Any = None,
    output_device: Any = None,
    dim: int = 0,
    module_kwargs: dict[str, Any] | None = None,
) -> Any:
    """Takes the place of `torch.nn.parallel.data_parallel`, the function."""
    if not isinstance(inputs, tuple):
        inputs = (inputs,) if inputs is not None else ()
    devices = len(device_ids) if device_ids is not None else torch.cuda.device_count()
    place = None if output_device is None else _index(output_device)
    return run(module, inputs, module_kwargs or {}, dim, devices, place)


@contextlib.contextmanager
def _no_sync(self: nn.Module) -> Iterator[None]:
    """Within: backward adds to the gradients without adding them up over the devices; the next backward outside, or
    whoever looks at a gradient first, does it for all. Right with and without; this saves communication."""
    if world.current().size == 1:
        yield
    else:
        with reducer.REDUCER.deferred(list(self.parameters())):
            yield


# ---------------------------------------------------------------------- pickling
def _getstate(self: Any) -> dict[str, Any]:
    """As torch's own class would have been pickled on this machine: without GPUs it has no device ids."""
    state = dict(self.__dict__)
    if not torch.cuda.is_available():
        state[_IDS] = state.get("device_ids", [])
        state["device_ids"] = []
    return state


def _setstate(self: Any, state: dict[str, Any]) -> None:
    state = dict(state)
    ids = state.pop(_IDS, None)
    nn.Module.__setstate__(self, state)
    if ids is not None:
        self.device_ids = ids
    self.__dict__.setdefault("dim", 0)  # torch leaves it out where there is no GPU


class DataParallel(nn.DataParallel):  # type: ignore[type-arg]
    """Runs a module on every device's share of the batch, with the numbers of one device.

    What `torch.nn.DataParallel` is under `samestep run`: `.module`, the `module.` keys of its state_dict and
    `isinstance(m, nn.DataParallel)` are as there, and it is pickled as that class. Without the launcher there is one
    device, and it only calls the module.

    Args:
        module: the module to run.
        device_ids: how many devices the script believes to use; the devices are those of the run. A module that
            returns a scalar gives a vector of as many entries, as with `torch.nn.DataParallel`; with one id, or
            on CPU devices without ids, the scalar.
        output_device: `"cpu"` or -1 to have the outputs in host memory; they are global tensors on every rank.
        dim: the dimension of the batch in the inputs and outputs.

    Example:
        >>> model = DataParallel(nn.Linear(4, 2))
        >>> model(torch.zeros(3, 4)).shape
        torch.Size([3, 2])
    """

    def __init__(self, module: nn.Module, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
        _init(self, module, device_ids, output_device, dim)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's output for the whole batch."""
        return _forward(self, *inputs, **kwargs)

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        """Gradients of backward passes within are added up over the devices later, all at once."""
        return _no_sync(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if type(self) is not DataParallel:
            return super().__reduce_ex__(protocol)
        return copyreg._reconstructor, (nn.DataParallel, object, None), _getstate(self)  # type: ignore[attr-defined]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    def __setstate__(self, state: dict[str, Any]) -> None:
        _setstate(self, state)


#: What stands for torch's own steps in `samestep.DataParallel`.
_OURS: dict[str, Any] = {"forward": DataParallel.forward}


# ---------------------------------------------------------------------- DistributedDataParallel
def _refused(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
    given = kwargs.get("process_group") or kwargs.get("device_mesh")
    if given is None and not torch.distributed.is_initialized():
        raise SamestepError(
            f"DistributedDataParallel({type(module).__name__}) needs a process group, and this script has initialised "
            "none. A script for one device needs no wrapper under samestep: remove DistributedDataParallel (or write "
            "torch.nn.DataParallel) and keep the batch size of one device. A script for several processes calls "
            "torch.distributed.init_process_group() first."
        )
    _torch_ddp_init(self, module, *args, **kwargs)


_torch_ddp_init = nn.parallel.DistributedDataParallel.__init__


def install() -> None:
    """Let `nn.DataParallel` in a script deal the rows out to the ranks."""
    nn.parallel.DistributedDataParallel.__init__ = _refused  # type: ignore[method-assign]
    reducer.install()  # `no_sync` needs it
    compiled.install()  # a compiled wrapper deals out rows, too
    if world.current().size == 1:
        return
    theirs: Any = nn.DataParallel
    theirs.__init__, theirs.forward, theirs.no_sync = _init, _forward, _no_sync
    theirs.__getstate__, theirs.__setstate__ = _getstate, _setstate
    nn.parallel.data_parallel = data_parallel
    module: Any = sys.modules["torch.nn.parallel.data_parallel"]
    module.data_parallel = data_parallel
    scatter_gather.install()
