"""What is known about the random operations of a region: where they are, and how their shapes follow the rows.

Which dimension of which tensor has the rows cannot be seen from one rank's shapes (4 rows of 4 features). It is
learned from two runs with different numbers of rows, for every place in the code that draws.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn

from samestep.errors import SamestepError
from samestep.parallel.serials import serial

_TORCH_MODULE_FILE = nn.Module._call_impl.__code__.co_filename
_CHECKPOINT_FILE = torch.utils.checkpoint.__file__
#: Ours, and torch's ways to its operations, which differ with what else is switched on.
_NOT_A_PLACE = (
    __file__.rpartition("parallel")[0],
    *(torch.__path__[0] + end for end in ("/_dynamo/", "/_compile.py", "/_ops.py")),
)
#: Functions that call into a region. A place in the code is known by what lies between one of them and the draw; so
#: it is for checkpointing, which calls the same function in forward and in backward.
BOUNDARIES: set[CodeType] = set()

Place = tuple[Any, ...]


class NotByRow(SamestepError):
    """What is drawn cannot be cut into the ranks' rows; the text says why."""


# ---------------------------------------------------------------------- what is known about a draw
@dataclass(frozen=True)
class Along:
    """Of a tensor: dimension `dim` has `per_row` entries for each row; `order` has the dimensions by stride."""

    dim: int
    per_row: int
    order: tuple[int, ...]


@dataclass(frozen=True)
class Length:
    """Of a number in a list of sizes: `per_row` for each row."""

    per_row: int


Layout = Along | Length | None


@dataclass(frozen=True)
class Draw:
    """One draw: the operation, and for everything that goes in and comes out how it follows the rows (None: not)."""

    name: str
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]


@dataclass
class Draws:
    """All draws of a region that are known, by place, in the order in which they happened there."""

    at: dict[Place, list[Draw]] = field(default_factory=dict)
    #: Whether every draw must be one device's (`--exact-random`), else one that is not known is the rank's own.
    strict: bool = True

    def has_shared(self) -> bool:
        """Whether some draw is for all rows at once: a mask of the weights, an order of the features."""
        return any(not any((*draw.inputs, *draw.outputs)) for draws in self.at.values() for draw in draws)

    def find(self, place: Place, number: int | None) -> Draw | None:
        """The draw at a place: the only one there is, or else the one of that number; None if it is not known."""
        known = self.at.get(place)
        if not known:
            return None
        if all(draw == known[0] for draw in known):
            return known[0]
        return known[number] if number is not None and number < len(known) else None


@dataclass(frozen=True)
class Look:
    """What one draw looked like in one run: shapes, dimensions by stride, other values."""

    place: Place
    name: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


@dataclass(frozen=True)
class TensorLook:
    """A tensor as it was seen."""

    shape: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class Size:
    """A number in a list: one of a shape."""

    number: int


def paired(few: Look, many: Look, rows: int, more_rows: int) -> Draw:
    """What is learned from the same draw in two runs with different numbers of rows."""
    if few.place != many.place or few.name != many.name:
        raise NotByRow("what it draws depends on the number of rows")
    inputs = [_layout(a, b, rows, more_rows) for a, b in zip(few.inputs, many.inputs, strict=True)]
    outputs = [_layout(a, b, rows, more_rows) for a, b in zip(few.outputs, many.outputs, strict=True)]
    return Draw(few.name, tuple(inputs), tuple(outputs))


def _layout(few: Any, many: Any, rows: int, more_rows: int) -> Layout:
    if isinstance(few, TensorLook) and isinstance(many, TensorLook) and len(few.shape) == len(many.shape):
        differ = [d for d, (a, b) in enumerate(zip(few.shape, many.shape, strict=True)) if a != b]
        if not differ:
            return None
        if len(differ) == 1:
            a, b = few.shape[differ[0]], many.shape[differ[0]]
            if a % rows == 0 and a // rows * more_rows == b:
                return Along(differ[0], a // rows, many.order)
    elif isinstance(few, Size) and isinstance(many, Size):
        if few.number == many.number:
            return None
        if few.number % rows == 0 and few.number // rows * more_rows == many.number:
            return Length(few.number // rows)
    elif not isinstance(few, TensorLook) and few == many:
        return None
    raise NotByRow("it draws random numbers in a shape that does not follow the rows of the batch")


def leaves(nest: Any, in_list: bool = False) -> Iterator[Any]:
    """What an operation takes or gives, one after the other; numbers in lists as `Size`."""
    if isinstance(nest, (list, tuple)):
        for value in nest:
            yield from leaves(value, True)
    elif isinstance(nest, dict):
        for value in nest.values():
            yield from leaves(value)
    elif in_list and type(nest) is int:
        yield Size(nest)
    else:
        yield nest


def mapped(fn: Callable[[Any], Any], nest: Any) -> Any:
    """The nest with `fn` applied to its leaves, in the order of `leaves` (sizes as plain numbers)."""
    if isinstance(nest, (list, tuple)):
        return type(nest)([mapped(fn, value) for value in nest])
    if isinstance(nest, dict):
        return {key: mapped(fn, value) for key, value in nest.items()}
    return fn(nest)


def look(leaf: Any) -> Any:
    """What there is to see of one leaf."""
    if isinstance(leaf, torch.Tensor):
        return TensorLook(tuple(leaf.shape), _by_stride(leaf))
    return "generator" if isinstance(leaf, torch.Generator) else leaf


def _by_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """The dimensions from the smallest stride to the largest; those behind first where strides are equal."""
    return tuple(sorted(range(tensor.dim()), key=lambda d: (tensor.stride(d), -d)))


def place_now() -> Place:
    """The place in the code that is running: calls and modules between the draw and the border of the region."""
    parts: list[Any] = []
    frame = sys._getframe(1)
    while frame is not None and frame.f_code not in BOUNDARIES:
        code = frame.f_code
        if code.co_filename == _CHECKPOINT_FILE:
            break
        if code.co_filename != _TORCH_MODULE_FILE and not code.co_filename.startswith(_NOT_A_PLACE):
            parts.append((code.co_filename, code.co_firstlineno, frame.f_lasti))
            if code.co_argcount and code.co_varnames[0] == "self":
                owner = frame.f_locals.get("self")
                if isinstance(owner, nn.Module):
                    parts.append(serial(owner))
        if frame.f_back is None:
            break
        frame = frame.f_back
    return tuple(parts)
