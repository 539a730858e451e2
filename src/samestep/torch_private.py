"""Every name of torch's that is not documented as public and that Samestep leans on, in one place.

Each is checked at import: with a torch that lacks one, the message says which, instead of an AttributeError later.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
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
    "torch._foreach_copy_": "copying gradients out of buckets",
    "torch.utils.weak.WeakIdKeyDictionary": "what is remembered about a tensor or a module",
    "torch.batch_norm_update_stats": "the statistics of the global batch",
    "torch._C._functorch.maybe_current_level": "seeing that vmap or grad of torch.func is at work",
    "torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack": "making tensors whole inside vmap or grad",
    "torch.utils._python_dispatch.TorchDispatchMode": "deterministic random operations while a module is checked",
    "torch._ops.OpOverload": "random numbers drawn for the whole batch",
    "torch._C._dispatch_has_kernel_for_dispatch_key": "random numbers drawn for the whole batch",
    "torch.utils.checkpoint._StopRecomputationError": "running statistics in checkpointed modules",
}


#: Shorter ways where this torch has them; without them the public function is called.
mse_loss: Callable[..., torch.Tensor] | None = getattr(torch._C._nn, "mse_loss", None)
cross_entropy: Callable[..., torch.Tensor] | None = getattr(torch._C._nn, "cross_entropy_loss", None)


def no_modes() -> int:
    """Where torch cannot say how many function modes are on, there may be one."""
    return 1


#: How many modes of the script's (`torch.overrides.TorchFunctionMode`) are on.
function_modes: Callable[[], int] = getattr(torch._C, "_len_torch_function_stack", no_modes)


def _find(path: str) -> Any:
    value: Any = torch
    for name in path.split(".")[1:]:
        value = getattr(value, name)
    return value


def require() -> None:
    """Raise a `SamestepError` naming what this torch lacks, if anything."""
    import torch._functorch.pyfunctorch
    import torch.distributed
    import torch.utils._python_dispatch
    import torch.utils.checkpoint
    import torch.utils.weak

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


def global_module_hooks() -> list[dict[int, Any]]:
    """The hooks that `torch.nn.modules.module.register_module_forward_hook` and its like have put on every module."""
    return _GLOBAL_HOOKS


_GLOBAL_HOOKS: list[dict[int, Any]] = [
    getattr(torch.nn.modules.module, f"_global_{kind}_hooks", {})
    for kind in ("forward", "forward_pre", "backward", "backward_pre")
]


def hook_count(tensor: torch.Tensor) -> int:
    """How many hooks see this tensor's gradient in backward, ours included."""
    before: Any = tensor._backward_hooks
    after: Any = tensor._post_accumulate_grad_hooks
    return (len(before) if before else 0) + (len(after) if after else 0)


def inside_transform() -> bool:
    """Whether this thread is inside `vmap`, `grad` or another transform of torch.func."""
    return torch._C._functorch.maybe_current_level() is not None


def outside_transforms() -> AbstractContextManager[Any]:
    """Within: plain torch, although the thread is inside a transform of torch.func."""
    context: AbstractContextManager[Any] = torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack()
    return context


def by_identity() -> Any:
    """A dictionary whose keys are objects by identity, which it does not keep alive.

    Tensors compare element by element, and the hash of some modules changes with what they hold (torchmetrics').
    """
    from torch.utils.weak import WeakIdKeyDictionary

    return WeakIdKeyDictionary()


def channel_statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and biased variance of each channel of a tensor on the CPU that is not empty."""
    mean, var = torch.batch_norm_update_stats(x, None, None, 0.0)
    return mean, var


def is_operator(func: object) -> bool:
    """Whether what a dispatch mode is given is one ATen operation, with a schema and tags."""
    return isinstance(func, torch._ops.OpOverload)


def is_composite(operator: Any) -> bool:
    """Whether an ATen operation is made of others, also for autograd."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"))


def run_composite(operator: Any, args: Any, kwargs: Any) -> Any:
    """Run such an operation as the others that its C++ kernel is made of.

    Not `decompose`, which prefers Python's decompositions: those draw random numbers in other ways.
    """
    return operator._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def optimized_module() -> Any:
    """The class of a module that `torch.compile` returns. Loads the compiler."""
    import torch._dynamo.eval_frame

    return torch._dynamo.eval_frame.OptimizedModule


def _code_of(function: Any) -> str:
    """The file of a function's code, which `functools.wraps` does not change."""
    return str(getattr(getattr(function, "__code__", None), "co_filename", ""))


def teach_dynamo(package: str, module_call: Any, subclass: type[torch.Tensor]) -> None:
    """Let the compiler skip the code of `package`, take `module_call` for the usual call of a module, and not trace
    tensors of class `subclass`. Loads the compiler."""
    import torch._dynamo.config
    import torch._dynamo.trace_rules
    import torch._dynamo.variables.nn_module

    dynamo: Any = torch._dynamo
    try:
        dynamo.trace_rules.add(package)
        # Found there by the names of torch's functions: those that were replaced would be run while tracing.
        rules = dynamo.trace_rules.get_torch_obj_rule_map()
        home = os.path.dirname(os.path.abspath(__file__)) + os.sep
        for function in [f for f in rules if _code_of(f).startswith(home)]:
            del rules[function]
        dynamo.config.nontraceable_tensor_subclasses.add(subclass)
        nn_module = dynamo.variables.nn_module
        if hasattr(nn_module, "unpatched_nn_module_call"):
            nn_module.unpatched_nn_module_call = module_call
    except AttributeError as error:
        raise SamestepError(
            f"torch {torch.__version__} lacks what Samestep needs to work with torch.compile ({error}). Leave "
            "torch.compile out, or use a torch release that Samestep was tested with."
        ) from None


def recomputation_stopped() -> type[Exception]:
    """What torch's checkpointing raises inside a block that it runs again, once it has all that it needs."""
    from torch.utils.checkpoint import _StopRecomputationError

    kind: type[Exception] = _StopRecomputationError
    return kind


def script_as(function: Callable[..., Any], original: Callable[..., Any]) -> None:
    """Let TorchScript take `function` for `original`, which it can read."""
    from torch.jit import _state

    _state._set_jit_function_cache(function, torch.jit.script(original))


def script_frames(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a call of `torch.jit.script` that is made by one more function."""
    return {**options, "_frames_up": options.get("_frames_up", 0) + 1}
