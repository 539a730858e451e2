"""`torch.autograd.backward` and `torch.autograd.grad` for global tensors.

Torch's own functions hand tensors to C++, which would see a wrapper without history; so they are replaced while
Samestep runs, and pass plain tensors through unchanged.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from samestep import place, unsplit
from samestep.globalview.collectives import AverageUnits, apply
from samestep.globalview.fallback import inside_region
from samestep.globalview.placement import Shard
from samestep.globalview.tensor import WHERE, GlobalTensor, made_whole, piece_of

_torch_backward = torch.autograd.backward
_torch_grad = torch.autograd.grad


def _never(tensor: torch.Tensor) -> bool:
    return False


#: Set by `samestep.parallel.region`: whether a plain tensor gets gradients from inside regions.
takes_region_gradients: Callable[[torch.Tensor], bool] = _never


def _goes_nowhere(tensor: torch.Tensor) -> None:
    return None


#: Set by `samestep.parallel.region`: what to do when a gradient comes to a gradient of this parameter of a region.
gradient_goes_in: Callable[[torch.Tensor], None] = _goes_nowhere


def _nothing() -> None:
    return None


#: Set by `samestep.parallel.region`: what to do when a backward has raised, before the script sees the exception.
backward_raised: Callable[[], None] = _nothing


class _Running(threading.local):
    """The backward passes of this thread: how deep they are nested, and whether the innermost fills `.grad`."""

    depth = 0
    accumulates = True


RUNNING = _Running()


@contextlib.contextmanager
def _running(accumulates: bool) -> Iterator[None]:
    before = RUNNING.accumulates
    RUNNING.depth += 1
    RUNNING.accumulates = accumulates
    try:
        yield
    except BaseException:
        if RUNNING.depth == 1:
            backward_raised()
        raise
    finally:
        RUNNING.depth -= 1
        RUNNING.accumulates = before


def _as_list(value: Any) -> list[Any]:
    return [value] if isinstance(value, torch.Tensor) or value is None else list(value)


def _roots(tensors: Sequence[Any], grads: Any) -> tuple[list[Any], list[Any] | None]:
    given = _as_list(grads) if grads is not None else [None] * len(tensors)
    locals_, local_grads = [], []
    for tensor, grad in zip(tensors, given, strict=True):
        if type(tensor) is not GlobalTensor:
            locals_.append(tensor)
            local_grads.append(grad.whole("gradient") if type(grad) is GlobalTensor else grad)
            continue
        single = tensor.single if grad is None else None
        if single is not None:  # `nn.DataParallel`'s vector of one loss per device, used as the loss of one device
            tensor = single
            if type(tensor) is not GlobalTensor:
                locals_.append(tensor)
                local_grads.append(None)
                continue
        if grad is None and tensor.numel() != 1:
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
        if grad is None and type(tensor._placement) is Shard:
            grad = torch.ones(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        locals_.append(tensor._local)
        local_grads.append(None if grad is None else piece_of(grad, tensor._placement))
    return locals_, local_grads


@functools.wraps(_torch_backward)
def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None:
    roots, grads = _roots(_as_list(tensors), grad_tensors if grad_tensors is not None else grad_variables)
    if inputs is not None:
        inputs = [i._local if type(i) is GlobalTensor else i for i in _as_list(inputs)]
    if RUNNING.depth == 0:
        unsplit.backward_begins()
        place.note()
    with _running(True):
        _torch_backward(roots, grads, retain_graph, create_graph, inputs=inputs)


@functools.wraps(_torch_grad)
def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, **kwargs: Any) -> Any:
    if WHERE.region:
        return _torch_grad(outputs, inputs, grad_outputs, *args, **kwargs)
    roots, grads = _roots(_as_list(outputs), grad_outputs)
    targets = _as_list(inputs)
    plain = [t._local if type(t) is GlobalTensor else t for t in targets]
    with _running(False):
        results = _torch_grad(roots, plain, grads, *args, **kwargs)
    return tuple(_seen_by_script(target, result) for target, result in zip(targets, results, strict=True))


def _seen_by_script(target: torch.Tensor, result: torch.Tensor | None) -> torch.Tensor | None:
    if type(target) is GlobalTensor:
        if result is None or type(target._placement) is not Shard:
            return result
        return GlobalTensor(result, target._placement, target.shape)
    if takes_region_gradients(target):
        # A parameter of a region: its gradient is in the region's units on each rank. None stays None only if it
        # is None everywhere, which an empty or untouched piece of a model could break; zeros are its true value.
        if result is None:
            return None
        return apply(AverageUnits, result, lambda: gradient_goes_in(target))
    return result


def _with_whole_setter(name: str) -> property:
    """Torch's attribute, whose setter takes a global tensor's value instead of its wrapper without storage."""
    original = getattr(torch._C.TensorBase, name)

    def put(tensor: torch.Tensor, value: Any) -> None:
        original.__set__(tensor, value.whole(name) if type(value) is GlobalTensor else value)

    return property(original.__get__, put, original.__delete__)


_torch_apply = torch.autograd.Function.__dict__["apply"].__func__


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """`Function.apply` hands tensors to C++ without asking `__torch_function__`; it gets plain ones."""
    if any(type(a) is GlobalTensor for a in args):
        if WHERE.region:
            return inside_region(lambda *plain: _torch_apply(cls, *plain, **kwargs), args, {})
        args = made_whole(args, cls.__name__)
    return _torch_apply(cls, *args, **kwargs)


def install() -> None:
    """Replace torch's two functions by these, and let plain tensors take global values."""
    torch.autograd.backward = backward
    torch.autograd.grad = grad
    torch.autograd.Function.apply = classmethod(_apply)  # type: ignore[assignment]
    torch.Tensor.data = _with_whole_setter("data")  # type: ignore[assignment]
    torch.Tensor.grad = _with_whole_setter("grad")  # type: ignore[assignment]
