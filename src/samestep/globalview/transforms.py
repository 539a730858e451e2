"""`torch.func` and forward-mode differentiation over global tensors: they get whole values.

A transform wraps its arguments in tensors of its own, which know nothing of shards. So arguments are made whole before
the transform sees them, and a global tensor that a transformed function reaches from outside (a batch in a closure) is
made whole where it is used; its gradient flows back to it. Right, at the price of one gather.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.forward_ad
import torch.func

from samestep.globalview.tensor import made_whole

#: Take a function and give another, which is called with tensors.
_MAKERS = ("grad", "grad_and_value", "jacrev", "jacfwd", "hessian", "vmap", "functionalize")
#: Take a function and tensors.
_CALLS = ("vjp", "jvp", "linearize")


_installed: list[bool] = []


def _with_whole_arguments(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        whole_args, whole_kwargs = made_whole((args, kwargs), name)
        return function(*whole_args, **whole_kwargs)

    return replacement


def _making(transform: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(transform)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return _with_whole_arguments(transform(*args, **kwargs), name)

    return replacement


def _calling(transform: Callable[..., Any], name: str) -> Callable[..., Any]:
    direct = _with_whole_arguments(transform, name)

    @functools.wraps(transform)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        result = direct(*args, **kwargs)
        if isinstance(result, tuple) and len(result) > 1 and callable(result[1]):
            return (result[0], _with_whole_arguments(result[1], name), *result[2:])
        return result

    return replacement


def install() -> None:
    """Replace the entries of `torch.func`; calling it again changes nothing."""
    if _installed:
        return
    _installed.append(True)
    for name in _MAKERS:
        if hasattr(torch.func, name):
            setattr(torch.func, name, _making(getattr(torch.func, name), name))
    for name in _CALLS:
        if hasattr(torch.func, name):
            setattr(torch.func, name, _calling(getattr(torch.func, name), name))
    torch.vmap = torch.func.vmap
    dual = torch.autograd.forward_ad.make_dual
    torch.autograd.forward_ad.make_dual = _with_whole_arguments(dual, "make_dual")
