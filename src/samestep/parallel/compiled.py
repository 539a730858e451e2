"""`torch.compile`: what is compiled works on plain tensors, inside regions and for whole values.

A compiled module is a region as any other: inside, its code is compiled for the rank's rows. A compiled function that
is called with global tensors runs uncompiled, so that its operations are done on shards by their rules; the compiler
would see a wrapper without storage. The same holds for a compiled module that has to be opened. Each is said once.

Dynamo, which reads Python code to compile it, is told to leave Samestep's own code alone. It is loaded, as without
Samestep, when a script first asks for it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from samestep import torch_private, world
from samestep.globalview.tensor import WHERE, GlobalTensor
from samestep.nest import tensors
from samestep.notice import notice_once

_torch_compile = torch.compile


@functools.wraps(_torch_compile)
def compile(model: Any = None, **options: Any) -> Any:
    """Takes the place of `torch.compile`."""
    if model is None:
        return lambda function: compile(function, **options)
    _prepare()
    # Samestep's own code, such as global batch norm, is called between the compiled parts.
    options["fullgraph"] = False
    wrapper = _data_parallel_of(model)
    if wrapper is not None:
        # What it wraps is compiled: the wrapper itself deals out rows.
        if not isinstance(wrapper.module, torch_private.optimized_module()):
            wrapper.module.compile(**options)
        if wrapper is not model:
            return model
        result: Any = _torch_compile(model, **options)
        result.__dict__["_samestep_wrapper"] = True
        result.forward = model.__call__
        return result
    result = _torch_compile(model, **options)
    if isinstance(model, nn.Module) or inspect.isclass(model) or result is model:
        return result
    return _on_plain_tensors(result, model, getattr(model, "__qualname__", type(model).__name__))


def _data_parallel_of(model: Any) -> Any:
    """The `nn.DataParallel` that is to be compiled, or whose call is (`wrapper.compile()`)."""
    owner = getattr(model, "__self__", None) if inspect.ismethod(model) else model
    return owner if isinstance(owner, nn.DataParallel) else None


def _on_plain_tensors(compiled: Callable[..., Any], original: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`compiled`, or `original` where there are global tensors among the arguments."""

    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not WHERE.region and any(type(t) is GlobalTensor for t in tensors((args, kwargs))):
            notice_once(
                f"{name} is compiled and was called with a batch that is split over the devices; it runs uncompiled, "
                "each operation on the rows of each device. A module around it, called with the batch, is compiled."
            )
            return original(*args, **kwargs)
        return compiled(*args, **kwargs)

    # By these the compiler would take what is wrapped, and of a method forget whose it is.
    for mark in [name for name in vars(call) if name.startswith("_torchdynamo")]:
        delattr(call, mark)
    return call


_prepared = False


def _prepare() -> None:
    """Load the compiler and tell it about Samestep, once."""
    global _prepared
    if _prepared:
        return
    _prepared = True
    torch_private.teach_dynamo("samestep", nn.Module.__call__, GlobalTensor)
    kind = torch_private.optimized_module()
    initialize = kind._initialize

    def guarded(self: Any) -> None:
        original = self._orig_mod
        ours: Any = nn.Module.__call__
        module: Any = nn.Module
        module.__call__ = module._wrapped_call_impl  # what is compiled is torch's, which the compiler can read
        try:
            initialize(self)
        finally:
            module.__call__ = ours
        self.forward = _on_plain_tensors(self.forward, original, type(original).__name__)

    kind._initialize = guarded


def uncompiled() -> contextlib.AbstractContextManager[Any]:
    """Within: compiled code runs as it was written, and nothing is compiled."""
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def install() -> None:
    """Let compiled code meet plain tensors only."""
    if world.current().size > 1:
        torch.compile = compile
