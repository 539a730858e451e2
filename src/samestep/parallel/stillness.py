"""Running a module without consequences: randomness made deterministic, what it changed put back."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from samestep.nest import tensors
from samestep.parallel.streams import all_states, kept_streams, same_state, torch_state

#: Names of ATen operations that draw, and the value that stands for every draw. What is drawn must not depend on how
#: many rows there are, else a module with dropout would seem to couple its rows.
_CONSTANTS = {
    "rand": 0.5,
    "rand_like": 0.5,
    "uniform": 0.5,
    "uniform_": 0.5,
    "randn": 0.3,
    "randn_like": 0.3,
    "normal": 0.3,
    "normal_": 0.3,
    "normal_functional": 0.3,
    "bernoulli": 1.0,
    "bernoulli_": 1.0,
    "exponential": 0.7,
    "exponential_": 0.7,
    "randint": 0,
    "randint_like": 0,
    "random_": 0,
    "multinomial": 0,
    "poisson": 1,
    "log_normal_": 1.1,
    "cauchy_": 0.2,
    "geometric_": 1,
}


def _reads(func: Any, args: Any) -> bool:
    """Whether an operation lets the contents of a tensor decide something: a number for Python, or a shape."""
    if torch.Tag.data_dependent_output in func.tags:  # item(), bool(), equal()
        return True
    if torch.Tag.dynamic_output_shape not in func.tags:
        return False
    if func is torch.ops.aten.index.Tensor:  # only masks select a number of rows that depends on them
        return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    return True  # nonzero, masked_select, unique, …


@dataclass
class Seen:
    """Whether a module read numbers off its batch, and whether it drew random ones, also from a generator of its own.

    `python` says, after a run, where Python's and NumPy's streams stood then.
    """

    reads: bool = False
    draws: bool = False
    generator: bool = False
    python: bytes = b""


_ours = 0


@contextmanager
def own_reads() -> Iterator[None]:
    """Within: numbers are read by Samestep, not by the module."""
    global _ours
    _ours += 1
    try:
        yield
    finally:
        _ours -= 1


class _Deterministic(TorchDispatchMode):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # Parameters and buffers are the same on every rank: reading them decides the same everywhere.
        self.known = {t.data_ptr() for t in (*module.parameters(), *module.buffers())}
        self.seen = Seen()
        #: Where generators of the module's own stood.
        self.generators: dict[torch.Generator, torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _ours and _reads(func, args) and args[0].data_ptr() not in self.known:
            self.seen.reads = True
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        before = torch_state()
        own = self._is_own(kwargs.get("generator"))
        result = func(*args, **kwargs)
        # Only what really draws counts: dropout with p=0 does not, and must leave the script's stream alone.
        drew = own or not same_state(before, torch_state())
        self.seen.draws = self.seen.draws or drew
        if drew and name == "native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if drew and name in ("dropout", "feature_dropout", "alpha_dropout"):
            return args[0].clone()
        if name in _CONSTANTS and isinstance(result, torch.Tensor):
            return result.fill_(_CONSTANTS[name])
        return result

    def _is_own(self, generator: torch.Generator | None) -> bool:
        if generator is None or generator is torch.default_generator:
            return False
        self.seen.generator = True
        self.generators.setdefault(generator, generator.get_state())
        return True


@contextmanager
def deterministic_random(module: nn.Module) -> Iterator[Seen]:
    """Within: torch's random operations give constants; after: all streams stand where they stood.

    Gives notes on what the module did.
    """
    mode: Any = _Deterministic(module)
    try:
        with kept_streams():
            before = torch_state()
            with mode:
                yield mode.seen
            # Also what operations drew that torch does not call random (`random_`, `binomial`).
            mode.seen.draws = mode.seen.draws or not same_state(before, torch_state())
            mode.seen.python = pickle.dumps(all_states()[1:])
    finally:
        for generator, state in mode.generators.items():
            generator.set_state(state)


def _copied(value: Any) -> Any:
    return type(value)(value) if type(value) in (list, dict, set) else value


@contextmanager
def restored(module: nn.Module) -> Iterator[list[str]]:
    """After: buffers have their values, and modules the attributes, that they had before.

    Gives a list that names, at the end, the attributes with tensors or numbers that the module had changed: what it
    keeps for later would be one rank's own.
    """
    attributes = [(m, {key: _copied(value) for key, value in m.__dict__.items()}) for m in module.modules()]
    buffers = [(b, b.detach().clone()) for b in module.buffers()]
    changed: list[str] = []
    try:
        yield changed
    finally:
        for m, before in attributes:
            changed.extend(_changed(m.__dict__, before))
            _put_back_attributes(m.__dict__, before)
        with torch.no_grad():
            for buffer, before_value in buffers:
                buffer.copy_(before_value)


def _changed(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    names = []
    for key, value in now.items():
        old = before.get(key)
        if key in ("_buffers", "_parameters", "_modules") or value is old:
            continue
        if isinstance(value, (int, float)):
            if value != old:
                names.append(key)
        elif [id(t) for t in tensors(value)] != [id(t) for t in tensors(old)]:
            names.append(key)
    return names


def _put_back_attributes(now: dict[str, Any], before: dict[str, Any]) -> None:
    for key in list(now):
        if key not in before:
            del now[key]
    for key, value in before.items():
        current = now.get(key)
        if current is value:
            continue
        if type(current) is type(value) and type(value) in (list, dict, set):
            _refill(current, value)
        else:
            now[key] = value


def _refill(container: Any, contents: Any) -> None:
    """Give a container its contents back without replacing the object, which others may hold."""
    container.clear()
    if isinstance(container, list):
        container.extend(contents)
    else:
        container.update(contents)
