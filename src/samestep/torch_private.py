"""Every name of torch's that is not documented as public and that Samestep leans on, in one place.

Each is checked at import: with a torch that lacks one, the message says which, instead of an AttributeError later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from samestep.errors import SamestepError

_NEEDED = {
    "torch.autograd.Variable._execution_engine.queue_callback": "gradient reduction at the end of backward",
    "torch._C._current_graph_task_id": "telling one backward from the next",
    "torch.Tensor._make_wrapper_subclass": "GlobalTensor",
    "torch.distributed.ProcessGroupGloo": "process groups that the script does not see",
    "torch.Tensor._backward_hooks": "finding parameters with hooks of the script's",
    "torch.Tensor._post_accumulate_grad_hooks": "finding parameters with hooks of the script's",
    "torch._utils._flatten_dense_tensors": "copying gradients into buckets",
    "torch._foreach_copy_": "copying gradients out of buckets",
    "torch.utils._python_dispatch.TorchDispatchMode": "deterministic random operations while a module is checked",
}


#: Shorter ways where this torch has them; without them the public function is called.
mse_loss: Callable[..., torch.Tensor] | None = getattr(torch._C._nn, "mse_loss", None)
cross_entropy: Callable[..., torch.Tensor] | None = getattr(torch._C._nn, "cross_entropy_loss", None)


def no_modes() -> int:
    """Where torch cannot say how many function modes are on, there may be one."""
    return 1


#: How many modes of the script's (`torch.overrides.TorchFunctionMode`) are on.
function_modes: Callable[[], int] = getattr(torch._C, "_len_torch_function_stack", no_modes)


def _no_transform() -> Any:
    """Where torch cannot say it, no transform is taken to be running."""
    return None


_functorch: Any = getattr(torch._C, "_functorch", None)

#: The innermost `torch.func` transform that is running in this thread, or None.
running_transform: Callable[[], Any] = getattr(_functorch, "peek_interpreter_stack", _no_transform)


def outside_transforms() -> contextlib.AbstractContextManager[Any]:
    """A context in which no transform is running: there, what it does not wrap can be computed and communicated."""
    try:
        from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
    except ImportError:
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any] = temporarily_clear_interpreter_stack()
    return context


def _find(path: str) -> Any:
    value: Any = torch
    for name in path.split(".")[1:]:
        value = getattr(value, name)
    return value


def require() -> None:
    """Raise a `SamestepError` naming what this torch lacks, if anything."""
    import torch.distributed
    import torch.utils._python_dispatch

    for path, purpose in _NEEDED.items():
        try:
            _find(path)
        except AttributeError:
            raise SamestepError(
                f"torch {torch.__version__} has no `{path}`, which Samestep needs for {purpose}. "
                "Use a torch release from 2.6 on that Samestep was tested with."
            ) from None


def after_backward(callback: Callable[[], None]) -> None:
    """Call `callback` when the backward that is running ends; only from within a hook of it."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def current_graph_task() -> int:
    """A number for the backward that is running in this thread, -1 if none is."""
    return torch._C._current_graph_task_id()


def hook_count(tensor: torch.Tensor) -> int:
    """How many hooks see this tensor's gradient in backward, ours included."""
    before: Any = tensor._backward_hooks
    after: Any = tensor._post_accumulate_grad_hooks
    return (len(before) if before else 0) + (len(after) if after else 0)


def flatten(tensors: list[torch.Tensor]) -> torch.Tensor:
    """One contiguous tensor with the elements of all, copied by one call."""
    flat: torch.Tensor = torch._utils._flatten_dense_tensors(tensors)
    return flat
