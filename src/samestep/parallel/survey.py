"""What a module is made of, looked at before every split call, since a script may change any of it in between."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from samestep import torch_private
from samestep.globalview.placement import Shard
from samestep.globalview.tensor import GlobalTensor
from samestep.parallel.attributes import values_of
from samestep.parallel.entering import long_as_batch
from samestep.parallel.serials import serial


class Survey(NamedTuple):
    """One look at a module and all below it.

    Attributes:
        parameters: as `list(module.parameters())`.
        structure: what may change how it computes: which modules, their modes, replaced methods, flags.
        values: the numbers that the script sets on modules of its own classes.
        hooked: whether a hook of the script's would see the region's inside.
    """

    parameters: list[nn.Parameter]
    structure: tuple[Any, ...]
    values: tuple[Any, ...]
    hooked: bool


def survey(module: nn.Module) -> Survey:
    """Walk the modules once, at a tenth of the time that `named_modules` and `parameters` take."""
    found: dict[int, nn.Parameter] = {}
    structure: list[Any] = []
    values: list[Any] = []
    hooked = any(map(_has_foreign, torch_private.global_module_hooks()))
    seen: set[int] = set()
    stack = [module]
    while stack:
        m = stack.pop()
        if id(m) in seen:
            continue
        seen.add(id(m))
        own = m.__dict__
        structure.append((serial(m), own.get("training"), serial(own["forward"]) if "forward" in own else -1))
        if not type(m).__module__.startswith("torch.nn."):
            # Flags and names of the script's classes.
            structure.append(tuple([value for value in own.values() if type(value) is bool or type(value) is str]))
            values.extend(values_of(own, type(m)))
        hooked = hooked or _has_hooks(own)
        if "_parameters" not in own:  # TorchScript keeps what a module has in C++
            structure.append((serial(m), m.training))
            found.update((id(p), p) for p in m.parameters(recurse=False))
            stack.extend(reversed(list(m.children())))
            continue
        for p in own["_parameters"].values():
            if p is not None:
                found[id(p)] = p
        stack.extend([c for c in reversed(own["_modules"].values()) if c is not None])
    return Survey(list(found.values()), tuple(structure), tuple(values), hooked)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _has_hooks(attributes: dict[str, Any]) -> bool:
    """Whether there are hooks other than torch's own (weight norm, spectral norm), which belong to the module."""
    return any(_has_foreign(attributes.get(name)) for name in _HOOKS)


def _has_foreign(hooks: dict[int, Any] | None) -> bool:
    return hooks is not None and any(not _from_torch(hook) for hook in hooks.values())


def _from_torch(hook: Any) -> bool:
    home = getattr(hook, "__module__", None) or type(hook).__module__
    return bool(home.startswith("torch."))


#: From this many forms of call on, strings and integers count by type only.
MANY_FORMS = 16


def form_of(nest: Any, rows: int, coarse: bool = False) -> Any:
    """What a call's arguments look like, as far as it may change what the module does: one plan for each form.

    Flags, strings and integers count by value, `coarse` only flags: a time step or a caption takes many. Of a tensor
    it counts which dimensions are as long as the batch of `rows` rows, since those may be the rows.
    """
    kind = type(nest)
    if kind is GlobalTensor and isinstance(nest._placement, Shard):
        return nest.dim(), nest.dtype, nest._placement.dim, nest._placement.total == rows
    if isinstance(nest, torch.Tensor):
        return nest.dim(), nest.dtype, long_as_batch(nest, rows)
    if kind is bool or nest is None or (not coarse and (kind is str or kind is int)):
        return nest
    if kind is tuple or kind is list:
        return tuple([form_of(value, rows, coarse) for value in nest])
    if kind is dict:
        return tuple([(str(key), form_of(value, rows, coarse)) for key, value in nest.items()])
    return kind
