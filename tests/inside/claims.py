"""What a check claims: global values equal to plain ones. A broken claim is noted, not raised.

A rank that stopped at its first difference would leave its peers waiting in the next collective, so a check goes on
to its end on every rank and the runner collects what each of them noted.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import samestep
from samestep.ledger import LEDGER
from samestep.world import World, current

#: The broken claims of the check that is running; the runner empties it.
NOTED: list[str] = []

_label: list[str] = []
_TOLERANCE = {torch.float64: 1e-10, torch.complex128: 1e-10, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def note(text: str) -> None:
    """Record a broken claim, with the cases that it happened in."""
    NOTED.append(": ".join([*_label, text]))


@contextlib.contextmanager
def case(label: object) -> Iterator[None]:
    """One of several cases of a check: an exception in it is a broken claim, and the next case still runs."""
    _label.append(str(label))
    try:
        yield
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = " < ".join(f"{f.filename.rsplit('/', 1)[-1]}:{f.lineno}" for f in reversed(frames[-4:]))
        note(f"raised {type(error).__name__}: {str(error)[:200]} [{where}]")
    finally:
        _label.pop()


def true(condition: object, text: str) -> None:
    """`condition` must hold; it must be a plain value, the same on every rank."""
    if not condition:
        note(text)


def same(got: Any, expected: Any, text: str = "value", *, scale: float = 1.0) -> None:
    """`got`, made whole, must be `expected`: type of nest, shape, dtype and values (to rounding). Collective.

    Args:
        got: any nest; every rank must give it.
        expected: the truth, computed with plain tensors only.
        text: what is compared.
        scale: how many times looser than usual (1e-5 in single precision) the values are compared.
    """
    _compare(samestep.whole(got), expected, text, scale)


def _compare(got: Any, expected: Any, text: str, scale: float) -> None:
    if isinstance(expected, torch.Tensor):
        _compare_tensors(got, expected, text, scale)
    elif isinstance(expected, dict):
        if not isinstance(got, dict) or list(got) != list(expected):
            note(f"{text}: {got!r} instead of {expected!r}")
            return
        for key, value in expected.items():
            _compare(got[key], value, f"{text}[{key!r}]", scale)
    elif isinstance(expected, (list, tuple)):
        if type(got) is not type(expected) or len(got) != len(expected):
            note(f"{text}: {type(got).__name__} {got!r:.200} instead of {expected!r:.200}")
            return
        for number, value in enumerate(expected):
            _compare(got[number], value, f"{text}[{number}]", scale)
    elif isinstance(expected, float) and isinstance(got, float):
        _compare_tensors(torch.tensor(got), torch.tensor(expected), text, scale)
    elif type(got) is not type(expected) or got != expected:
        note(f"{text}: {got!r:.200} instead of {expected!r:.200}")


def _compare_tensors(got: Any, expected: torch.Tensor, text: str, scale: float) -> None:
    if not isinstance(got, torch.Tensor):
        note(f"{text}: {got!r:.200} instead of a tensor")
        return
    got, expected = got.detach(), expected.detach()
    if got.shape != expected.shape or got.dtype != expected.dtype:
        note(f"{text}: {got.dtype} {tuple(got.shape)} instead of {expected.dtype} {tuple(expected.shape)}")
        return
    if got.layout is not torch.strided or expected.layout is not torch.strided:
        got, expected = got.to_dense(), expected.to_dense()
    tolerance = _TOLERANCE.get(expected.dtype, 1e-5) * scale
    size = 1.0
    if (expected.is_floating_point() or expected.is_complex()) and bool(torch.isfinite(expected).any()):
        size = max(1.0, float(expected[torch.isfinite(expected)].abs().max()))
    try:
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance * size, equal_nan=True)
    except AssertionError as error:
        note(f"{text}: {' '.join(str(error).split())[:200]}")


def same_gradients(model: nn.Module, truth: nn.Module, text: str = "gradient", *, scale: float = 1.0) -> None:
    """Every parameter of `model` must have the gradient of the same parameter of `truth`, None where it has none."""
    expected = dict(truth.named_parameters())
    for name, parameter in model.named_parameters():
        same(parameter.grad, expected[name].grad, f"{text} of {name}", scale=scale)


def same_weights(model: nn.Module, truth: nn.Module, text: str = "weights", *, scale: float = 1.0) -> None:
    """Parameters and buffers must be those of `truth`."""
    same(dict(model.state_dict()), dict(truth.state_dict()), text, scale=scale)


def raises(kind: Any, text: str, action: Callable[..., Any], *args: Any) -> None:
    """`action(*args)` must raise `kind` (one or several exceptions), as the plain form does."""
    try:
        action(*args)
    except kind:
        return
    note(f"{text}: did not raise {kind}")


def world() -> World:
    """The ranks of this run."""
    return current()


def twins(make: Callable[[], Any], seed: int = 3) -> tuple[Any, Any]:
    """Two equal modules: one for the sharded run, one for the plain one."""
    torch.manual_seed(seed)
    first = make()
    torch.manual_seed(seed)
    return first, make()


def patterns(rows: int) -> list[tuple[int, ...]]:
    """Ways to hold `rows` rows: evenly, all on the first rank, all on the last, one row on the first rank."""
    size = current().size
    none = [0] * (size - 1)
    ways = [current().split(rows), (rows, *none), (*none, rows)]
    if rows > size:
        ways.append((1, *([1] * (size - 2)), rows - size + 1))
    return list(dict.fromkeys(ways))


def shards(tensor: torch.Tensor, dim: int = 0) -> Iterator[tuple[tuple[int, ...], torch.Tensor]]:
    """`tensor` as a global one in each way of `patterns`; each one is a fresh copy that may be written to."""
    for sizes in patterns(tensor.size(dim)):
        yield sizes, samestep.shard(tensor.detach().clone(), dim, sizes)


@contextlib.contextmanager
def gathers() -> Iterator[Counted]:
    """Count what is made whole within: `number` tensors; `operations` names them."""
    LEDGER.detailed, before = True, LEDGER.detailed
    LEDGER.gathers.clear()
    counted = Counted()
    try:
        yield counted
    finally:
        counted.number = sum(entry.count for entry in LEDGER.gathers.values())
        counted.operations = sorted({key[2] for key in LEDGER.gathers})
        LEDGER.detailed = before


class Counted:
    """The tensors that were made whole within `gathers()`."""

    number = 0
    operations: list[str]
