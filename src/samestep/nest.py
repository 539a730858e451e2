"""Nests: tensors inside tuples, lists, dicts, dataclasses, named tuples, in any depth."""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def map_tensors(fn: Callable[[torch.Tensor], Any], nest: Any) -> Any:
    """A nest of the same types with `fn` applied to each tensor; other leaves are kept as they are.

    A container none of whose tensors changed is returned itself, so that identity (`is`) survives where it can.

    Example:
        >>> map_tensors(lambda t: t + 1, {"a": (torch.zeros(1), "name")})
        {'a': (tensor([1.]), 'name')}
    """
    if isinstance(nest, torch.Tensor):
        return fn(nest)
    if isinstance(nest, (str, bytes, int, float, type(None))):
        return nest
    if isinstance(nest, Mapping):
        return _map_mapping(fn, nest)
    if isinstance(nest, (tuple, list)):
        return _map_sequence(fn, nest)
    if dataclasses.is_dataclass(nest) and not isinstance(nest, type):
        changed = {f.name: map_tensors(fn, getattr(nest, f.name, None)) for f in dataclasses.fields(nest)}
        if all(changed[k] is getattr(nest, k, None) for k in changed):
            return nest
        twin = copy.copy(nest)
        for name, value in changed.items():
            object.__setattr__(twin, name, value)
        return twin
    return nest


def _map_mapping(fn: Callable[[torch.Tensor], Any], nest: Mapping[Any, Any]) -> Any:
    changed = {key: map_tensors(fn, value) for key, value in nest.items()}
    if all(changed[key] is value for key, value in nest.items()):
        return nest
    if type(nest) is dict:
        return changed
    # Subclasses (OrderedDict, BatchEncoding, ModelOutput, …) keep what else they carry; ModelOutput refuses
    # `update` and mirrors items as attributes, so items are set one by one.
    twin = copy.copy(nest)
    for key, value in changed.items():
        twin[key] = value  # type: ignore[index]
    return twin


def _map_sequence(fn: Callable[[torch.Tensor], Any], nest: Any) -> Any:
    changed = [map_tensors(fn, value) for value in nest]
    if all(new is old for new, old in zip(changed, nest, strict=True)):
        return nest
    if isinstance(nest, list):
        if type(nest) is list:
            return changed
        twin = copy.copy(nest)
        twin[:] = changed
        return twin
    if hasattr(nest, "_fields"):  # a named tuple
        return type(nest)(*changed)
    return tuple(changed) if type(nest) is tuple else type(nest)(changed)


def tensors(nest: Any) -> Iterator[torch.Tensor]:
    """The tensors of a nest, in the order in which `map_tensors` meets them."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(note, nest)
    return iter(found)


def opaque(nest: Any) -> list[Any]:
    """The things in a nest that `map_tensors` does not look into, and that are not numbers, strings and the like.

    NumPy's arrays and numbers are among them: `np.float64` is a `float`, but was made of others.

    Example:
        >>> opaque(([1, "a", None], {"rows": {1, 2}}))
        [{1, 2}]
    """
    if type(nest).__module__ != "numpy" and isinstance(nest, (torch.Tensor, *_PLAIN, range, slice)):
        return []
    if isinstance(nest, Mapping):
        return [found for value in nest.values() for found in opaque(value)]
    if isinstance(nest, (tuple, list)):
        return [found for value in nest for found in opaque(value)]
    if dataclasses.is_dataclass(nest) and not isinstance(nest, type):
        return [found for f in dataclasses.fields(nest) for found in opaque(getattr(nest, f.name, None))]
    return [nest]


_PLAIN = (str, bytes, int, float, complex, type(None), type, enum.Enum, torch.device, torch.dtype, torch.layout)


def skeleton(nest: Any) -> Any:
    """What a nest is apart from its tensors: types, keys, lengths, numbers and strings; comparable with `==`.

    Example:
        >>> skeleton((torch.zeros(2), 3)) == skeleton((torch.ones(5), 3))
        True
    """
    if isinstance(nest, torch.Tensor):
        return torch.Tensor
    if isinstance(nest, _PLAIN):
        return "nan" if nest != nest else nest
    if isinstance(nest, (range, slice)):
        return (type(nest), nest)
    if isinstance(nest, Mapping):
        return (type(nest), [(key, skeleton(value)) for key, value in nest.items()])
    if isinstance(nest, (tuple, list)):
        return (type(nest), [skeleton(value) for value in nest])
    if dataclasses.is_dataclass(nest) and not isinstance(nest, type):
        return (type(nest), [(f.name, skeleton(getattr(nest, f.name, None))) for f in dataclasses.fields(nest)])
    return type(nest)
