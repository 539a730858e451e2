"""What a module keeps besides its buffers: remembered before a run, compared and put back after it.

A forward may keep tensors and numbers in attributes, in lists and dicts, in objects of the script's classes; it may
write into its parameters or replace their data. While a module is checked none of that may last, and what it keeps
must be looked at: on a rank it would be of that rank's rows only.
"""

from __future__ import annotations

import sys
import types
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from samestep.globalview.tensor import GlobalTensor
from samestep.nest import skeleton, tensors

#: Objects looked at; beyond, a module that drags a whole data set along would take too long.
_MOST_PLACES = 20_000
#: Longer containers are compared as a whole, not entry by entry.
_MOST_ENTRIES = 10_000
_MISSING = object()
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_FOREIGN = frozenset(sys.stdlib_module_names) | {"torch", "numpy", "samestep"}


@dataclass
class Changes:
    """What a run changed, by the attribute's path below the module.

    Attributes:
        kept: attributes with numbers, strings, objects, or another number of entries than before.
        tensors: attributes and parameters with other values than before, and their values after the run.
    """

    kept: list[str] = field(default_factory=list)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass
class _Place:
    """Something that holds values: attributes of an object, or a container; with a shallow copy from before."""

    path: str
    holder: Any
    before: Any
    attributes: bool = False


@contextmanager
def restored(module: nn.Module) -> Iterator[Changes]:
    """After: buffers, parameters and attributes have the values that they had before. Gives what the run changed."""
    places, loose = _look_around(module)
    # Kernels write running statistics without saying so: buffers are copied at once, the others before a write.
    buffers = [(b, b.detach(), b.detach().clone()) for b in module.buffers()]
    writes: Any = _CopyOnWrite({**dict(module.named_parameters()), **loose})
    changes = Changes()
    try:
        with writes:
            yield changes
    finally:
        for place in places:
            _compare(place, changes)
        for place in places:
            _put_back(place)
        writes.put_back(changes)
        with torch.no_grad():
            for buffer, alias, value in buffers:
                if type(buffer) is GlobalTensor:
                    buffer.copy_(value)
                    continue
                if buffer.data_ptr() != alias.data_ptr():
                    buffer.data = alias
                if not torch.equal(alias, value):
                    alias.data.copy_(value)  # past the version counter: what autograd has saved is unchanged


#: Parameters whose largest entry is smaller than this hide what they multiply from the check.
_CLOSED = 1e-3


@contextmanager
def without_closed_gates(module: nn.Module) -> Iterator[None]:
    """Within: parameters that are zero, or nearly, have other values, the same on every rank.

    Gates and last layers often start at zero: what lies behind one would not show in any output, and the module would
    be trusted with a coupling of its rows that only training brings to light.
    """
    closed = []
    for p in module.parameters():
        usable = p.numel() and p.layout is torch.strided and (p.is_floating_point() or p.is_complex())
        if usable and float(p.detach().abs().max()) < _CLOSED:
            closed.append((p, p.data))
    for p, _ in closed:
        values = torch.arange(p.numel(), device=p.device).remainder(3).add(1).mul(0.05)  # positive: there may be a log
        p.data = values.to(p.dtype).view(p.shape)
    try:
        yield
    finally:
        for p, data in closed:
            p.data = data


# ---------------------------------------------------------------------- tensors
class _CopyOnWrite(TorchDispatchMode):
    """Copies a tensor before the first operation that writes to it: most modules write to none."""

    def __init__(self, watched: dict[str, torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # An alias shares the memory, and keeps it if the tensor is given other data.
        self.watched = {name: (t, t.detach()) for name, t in watched.items() if t.layout is torch.strided}
        self.names: dict[int, list[str]] = {}
        for name, (_, alias) in self.watched.items():
            if alias.numel():
                self.names.setdefault(_memory(alias), []).append(name)
        self.copies: dict[str, torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "batch_norm" in func.name():
            self._save(args)
        elif func._schema.is_mutable:
            for argument, value in zip(func._schema.arguments, args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    self._save(value if isinstance(value, (list, tuple)) else [value])
            self._save(kwargs.values())
        return func(*args, **kwargs)

    def _save(self, written: Any) -> None:
        for tensor in written:
            if isinstance(tensor, torch.Tensor):
                for name in self.names.get(_memory(tensor), ()):
                    if name not in self.copies:
                        with torch.no_grad():
                            self.copies[name] = self.watched[name][1].clone()

    def put_back(self, changes: Changes) -> None:
        with torch.no_grad():
            for name, (tensor, alias) in self.watched.items():
                replaced = tensor.data_ptr() != alias.data_ptr() or tensor.shape != alias.shape
                copy = self.copies.get(name)
                written = copy is not None and not torch.equal(alias, copy)
                if replaced or written:
                    changes.tensors[name] = tensor.detach().clone()
                if written and copy is not None:
                    alias.data.copy_(copy)
                if replaced:
                    tensor.data = alias


def _memory(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse, or a wrapper without storage
        return -1


# ---------------------------------------------------------------------- looking around
def _look_around(module: nn.Module) -> tuple[list[_Place], dict[str, torch.Tensor]]:
    """Everything that holds values below a module, and the tensors that are neither parameters nor buffers."""
    places: list[_Place] = []
    loose: dict[str, torch.Tensor] = {}
    registered = {id(t) for t in (*module.parameters(), *module.buffers())}
    seen: set[int] = set()
    waiting: deque[tuple[str, Any]] = deque((name, m) for name, m in module.named_modules())
    while waiting and len(places) < _MOST_PLACES:
        path, value = waiting.popleft()
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            if id(value) not in registered and type(value) is not GlobalTensor:
                loose[path] = value
            continue
        place = _place(path, value)
        if place is not None:
            places.append(place)
        waiting.extend(_entries(path, value, place))
    return places, loose


def _place(path: str, value: Any) -> _Place | None:
    if isinstance(value, (dict, list, set, deque)):
        return _Place(path, value, _shallow(value))
    if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray":
        return _Place(path, value, value.copy())
    if _is_of_the_script(value):
        return _Place(path, value.__dict__, dict(value.__dict__), attributes=True)
    return None


def _shallow(value: Any) -> Any:
    for kind in (dict, list, set, deque):
        if isinstance(value, kind):
            return kind(value)
    return value


def _is_of_the_script(value: Any) -> bool:
    """Whether it is an object whose attributes may be state: a module, or of a class outside torch and Python."""
    if isinstance(value, nn.Module):
        return True
    if isinstance(value, (type, types.ModuleType)) or not hasattr(value, "__dict__"):
        return False
    return type(value).__module__.partition(".")[0] not in _FOREIGN


def _entries(path: str, value: Any, place: _Place | None) -> Iterator[tuple[str, Any]]:
    if isinstance(value, tuple) or (place is not None and isinstance(value, (list, deque))):
        if len(value) <= _MOST_ENTRIES:
            yield from ((f"{path}[{i}]", entry) for i, entry in enumerate(value))
    elif isinstance(value, dict):
        if len(value) <= _MOST_ENTRIES:
            yield from ((f"{path}[{key!r}]", entry) for key, entry in value.items())
    elif place is not None and place.attributes:
        for key, entry in place.before.items():
            yield (_below(path, key), entry)


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


# ---------------------------------------------------------------------- comparing
def _compare(place: _Place, changes: Changes) -> None:
    now, before = place.holder, place.before
    if isinstance(now, dict):
        if place.path.endswith("_buffers"):
            return  # their values are compared by name
        for key in (*before, *(key for key in now if key not in before)):
            path = _below(place.path, str(key)) if place.attributes else f"{place.path}[{key!r}]"
            _compare_entry(path, before.get(key, _MISSING), now.get(key, _MISSING), changes)
    elif isinstance(now, (list, deque)):
        if len(now) != len(before):
            changes.kept.append(place.path)
            return
        for number, (old, new) in enumerate(zip(before, now, strict=True)):
            _compare_entry(f"{place.path}[{number}]", old, new, changes)
    elif isinstance(now, set):
        if now != before:
            changes.kept.append(place.path)
    elif not (now.shape == before.shape and now.tobytes() == before.tobytes()):  # an array
        changes.kept.append(place.path)


def _compare_entry(path: str, old: Any, new: Any, changes: Changes) -> None:
    if new is old:
        return
    if isinstance(new, torch.Tensor) and (old is None or old is _MISSING or isinstance(old, torch.Tensor)):
        changes.tensors[path] = new.detach().clone()
    elif old is _MISSING or type(new) is not type(old) or skeleton(new) != skeleton(old) or not _is_nest(new):
        changes.kept.append(path)
    else:
        for number, (before, after) in enumerate(zip(tensors(old), tensors(new), strict=True)):
            if after is not before:
                changes.tensors[f"{path}[{number}]"] = after.detach().clone()


def _is_nest(value: Any) -> bool:
    """Whether `skeleton` and `tensors` see all of it."""
    if isinstance(value, dict):
        return all(_is_nest(entry) for entry in value.values())
    if isinstance(value, (tuple, list)):
        return all(_is_nest(entry) for entry in value)
    if hasattr(value, "__dataclass_fields__"):
        return all(_is_nest(entry) for entry in vars(value).values())
    return isinstance(value, (*_PLAIN, torch.Tensor))


# ---------------------------------------------------------------------- putting back
def _put_back(place: _Place) -> None:
    now, before = place.holder, place.before
    if isinstance(now, dict):
        for key in [key for key in now if key not in before]:
            del now[key]
        for key, value in before.items():
            if now.get(key, _MISSING) is not value:
                now[key] = value
        if list(now) != list(before):  # entries were moved or taken out
            now.clear()
            now.update(before)
    elif isinstance(now, (list, deque)):
        if len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True)):
            now.clear()
            now.extend(before)
    elif isinstance(now, set):
        if now != before:
            now.clear()
            now.update(before)
    elif now.shape == before.shape:
        now[...] = before
