"""What the script sets on a module from outside (`model.alpha = 0.5`), which may change how it treats its batch.

A forward, too, sets attributes: counters, the longest row so far. What it sets may depend on the rank's rows, and a
module that one rank alone checks again would leave that rank waiting. So an attribute does not count if code that
`forward` reaches sets it.
"""

from __future__ import annotations

import dis
import enum
import functools
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from samestep.parallel.serials import serial

#: What every module has, with names of its own.
_INTERNAL = frozenset(torch.nn.Module().__dict__)
#: Methods that change a list or dictionary in place.
_CHANGING = frozenset({"append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"})
#: Different values of a module's attributes that are checked, each; of more, every one whose number is a power of two.
MOST_VALUES = 16


class _Sets(NamedTuple):
    """What the code that a class's `forward` reaches may set: these attributes, and entries of containers or not."""

    names: frozenset[str]
    entries: bool


def values_of(attributes: dict[str, Any], kind: type) -> list[Any]:
    """What tells the attributes of a module of class `kind` from other ones: numbers, enumeration members, functions;
    of other things the type."""
    if "forward" in attributes:
        return []  # replaced: what it sets is not known
    sets = _sets(kind)
    return [
        _value(value, sets.entries)
        for name, value in attributes.items()
        if name not in _INTERNAL and name not in sets.names
    ]


def _value(value: Any, entries: bool) -> Any:
    kind = type(value)
    if kind is int or kind is float or kind is complex:
        return value if value == value else "nan"
    if kind is tuple or (kind is list and not entries):
        return tuple([_value(each, entries) for each in value[:MOST_VALUES]])
    if kind is dict and not entries:
        return tuple([_value(each, entries) for each in list(value.values())[:MOST_VALUES]])
    if kind is types.FunctionType:
        return serial(value)
    return value if isinstance(value, enum.Enum) else kind


@functools.cache
def _sets(kind: type) -> _Sets:
    names: set[str] = set()
    entries = False
    for code in _reached(kind):
        for step in dis.get_instructions(code):
            if step.opname in ("STORE_ATTR", "DELETE_ATTR"):
                names.add(str(step.argval))
            entries = entries or step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE")
        entries = entries or not _CHANGING.isdisjoint(code.co_names)
    return _Sets(frozenset(names), entries)


def _reached(kind: type) -> Iterator[types.CodeType]:
    """The code of `forward` and of the methods and properties of the class that it names, and so on."""
    waiting: list[types.CodeType] = []
    done: set[str] = set()

    def visit(name: str) -> None:
        member = getattr(kind, name, None)
        if name not in done and member is not getattr(torch.nn.Module, name, None):
            done.add(name)
            waiting.extend(_codes(member))

    visit("forward")
    visit("__call__")
    while waiting:
        code = waiting.pop()
        yield code
        waiting.extend(constant for constant in code.co_consts if isinstance(constant, types.CodeType))
        for name in code.co_names:
            if not name.startswith("__"):
                visit(name)


def _codes(member: Any) -> Iterator[types.CodeType]:
    parts: tuple[Any, ...] = (member.fget, member.fset) if isinstance(member, property) else (member,)
    for part in parts:
        while hasattr(part, "__wrapped__"):
            part = part.__wrapped__
        code = getattr(part, "__code__", None)
        if isinstance(code, types.CodeType):
            yield code


class Changes:
    """Which plans belong to the values that a module's attributes have now.

    A value that is one of very many (a step number, a weight that is annealed) is not checked each time: then the
    latest plan serves, or the latest by which the module was not split, if there is any.
    """

    def __init__(self) -> None:
        self._now: tuple[Any, ...] | None = None
        self._key: Any = ()
        self._seen: set[tuple[Any, ...]] = set()
        self._count = 0
        self._opened: Any = None

    def key(self, values: tuple[Any, ...]) -> Any:
        """What plans for these values are kept under."""
        if values == self._now:
            return self._key
        self._now = values
        if values in self._seen:
            self._key = values
        elif len(self._seen) < MOST_VALUES:
            self._seen.add(values)
            self._key = values
        else:
            self._count += 1
            if self._count & (self._count - 1) == 0:
                self._key = self._count
            elif self._opened is not None:
                self._key = self._opened
        return self._key

    def was_opened(self) -> None:
        """By the plan for the present values the module is not split."""
        self._opened = self._key
