"""Finding the functions that a rule is for.

The same operation has several names: `torch.add`, `Tensor.add`, `Tensor.__add__`, `Tensor.add_`, and Python
functions in `torch.nn.functional`. A rule is registered for all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F

from samestep.globalview.tensor import RULES, GlobalTensor, Rule

_SPACES: tuple[Any, ...] = (torch, torch.Tensor, F, torch.special, torch.linalg, torch._C._nn)


def functions_named(name: str) -> list[Any]:
    """Every function called `name` that dispatches on tensor subclasses."""
    found = [getattr(space, name, None) for space in _SPACES]
    return [f for f in found if callable(f) and not isinstance(f, type)]


def register(rule: Rule, names: str | Iterable[str]) -> None:
    """Use `rule` for the functions with these names (a blank-separated string or an iterable)."""
    for name in names.split() if isinstance(names, str) else names:
        for function in functions_named(name):
            RULES[function] = rule


def bind(args: tuple[Any, ...], kwargs: dict[str, Any], *names: str) -> dict[str, Any] | None:
    """Arguments after the first by name; None if there are others than `names`."""
    if len(args) - 1 > len(names):
        return None
    bound = dict(zip(names, args[1:], strict=False))
    for key, value in kwargs.items():
        if key not in names or key in bound:
            return None
        bound[key] = value
    return bound


def only_first_is_global(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether no argument but the first is a tensor (those rules take the rest as it is)."""
    return not any(isinstance(a, torch.Tensor) for a in args[1:]) and not any(
        isinstance(a, torch.Tensor) for a in kwargs.values()
    )


def is_global(value: Any) -> bool:
    """Whether `value` is a `GlobalTensor`."""
    return type(value) is GlobalTensor
