"""Dividing the batches of an ordinary script among several XLA devices.

In SPMD mode the script sees one device, and XLA's compiler divides each computation as its inputs are divided, without
changing what it computes. So it is enough to say of each batch that its rows lie on different devices: of every tensor
that goes from the host to the device and has as many rows as the batch that a DataLoader has just handed out. A tensor
that is divided without need costs time, never correctness.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from samestep.errors import SamestepError
from samestep.nest import tensors


class Divider:
    """Marks the tensors of the current batch; `count` is the number of devices."""

    def __init__(self, count: int) -> None:
        numpy: Any = importlib.import_module("numpy")
        self._spmd: Any = importlib.import_module("torch_xla.distributed.spmd")
        self._mesh = self._spmd.Mesh(numpy.arange(count), (count,), ("data",))
        self._rows = -1
        self.marked = 0

    def install(self) -> None:
        """Watch DataLoaders and the ways from the host to the device."""
        torch: Any = importlib.import_module("torch")
        model: Any = importlib.import_module("torch_xla.core.xla_model")
        loader = torch.utils.data.DataLoader
        loader.__iter__ = self._watched(loader.__iter__)
        torch.Tensor.to = self._dividing(torch.Tensor.to)
        model.send_cpu_data_to_device = self._sending(model.send_cpu_data_to_device)

    def mark(self, tensor: Any) -> Any:
        """Divide a tensor on the device by rows, if it belongs to the batch."""
        if tensor.dim() and tensor.size(0) == self._rows and tensor.device.type == "xla":
            self._spmd.mark_sharding(tensor, self._mesh, ("data", *[None] * (tensor.dim() - 1)))
            self.marked += 1
        return tensor

    def _watched(self, iterate: Callable[[Any], Any]) -> Callable[[Any], Iterator[Any]]:
        @functools.wraps(iterate)
        def batches(loader: Any) -> Iterator[Any]:
            return self._noting(iterate(loader))

        return batches

    def _noting(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self._rows = next((each.size(0) for each in tensors(batch) if each.dim()), -1)
            yield batch

    def _dividing(self, to: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(to)
        def moved(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            result = to(tensor, *args, **kwargs)
            return self.mark(result) if tensor.device.type != "xla" else result

        return moved

    def _sending(self, send: Callable[..., Any]) -> Callable[..., Any]:
        """`MpDeviceLoader` sends whole batches, ahead of time and from a thread of its own."""

        @functools.wraps(send)
        def sent(datas: Any, device: Any, input_sharding: Any = None) -> Any:
            result = send(datas, device, input_sharding)
            if input_sharding is None:
                found = tensors(result)
                self._rows = next((each.size(0) for each in found if each.dim()), -1)
                for each in found:
                    self.mark(each)
            return result

        return sent


def use_devices(count: int) -> Divider:
    """Switch to SPMD mode on `count` devices; before the script's first line, and only once in a process."""
    runtime: Any = importlib.import_module("torch_xla.runtime")
    runtime.use_spmd()
    there = runtime.global_runtime_device_count()
    if there != count:
        raise SamestepError(
            f"--devices xla:{count}: torch_xla shows {there} device{'s' if there != 1 else ''} "
            f"({runtime.device_type()}); write xla:{there}"
        )
    return Divider(count)


def run_launched_functions_here() -> None:
    """Let `xmp.spawn` and `torch_xla.launch` call the function once: in SPMD mode one process drives all devices."""
    multiprocessing: Any = importlib.import_module("torch_xla.distributed.xla_multiprocessing")
    package: Any = importlib.import_module("torch_xla")

    def spawn(fn: Callable[..., Any], args: Any = (), nprocs: int | None = None, **_: Any) -> None:
        fn(0, *args)

    def launch(fn: Callable[..., Any], args: Any = (), **_: Any) -> None:
        fn(0, *args)

    multiprocessing.spawn = spawn
    package.launch = launch
