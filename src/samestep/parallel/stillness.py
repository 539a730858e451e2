"""Running a module with its randomness made deterministic, and watching what it reads off its batch."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from samestep import torch_private
from samestep.parallel.compiled import uncompiled
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
    "binomial": 1,
    "_standard_gamma": 0.8,
    "_sample_dirichlet": 0.4,
}
#: Those of them that torch does not tag as random.
_UNTAGGED = {"random_", "binomial", "_sample_dirichlet"}


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


_DISTRIBUTIONS = os.path.join("torch", "distributions", "")


def _only_validates() -> bool:
    """Whether a distribution of torch's is checking its arguments: a rank whose rows are bad raises, as one device."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_name in ("__init__", "_validate_sample") and _DISTRIBUTIONS in code.co_filename:
            return True
        frame = frame.f_back
    return False


class _Validations(TorchFunctionMode):
    """`one_hot` reads its smallest and largest class only to raise, if it is told how many there are."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.one_hot and kwargs.get("num_classes", args[1] if len(args) > 1 else -1) > 0:
            with own_reads():
                return func(*args, **kwargs)
        return func(*args, **kwargs)


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
        if not _ours and _reads(func, args) and args[0].data_ptr() not in self.known and not _only_validates():
            self.seen.reads = True
        if torch_private.is_composite(func):  # in inference mode torch hands these on undivided
            with self:
                return torch_private.run_composite(func, args, kwargs)
        name = func.overloadpacket.__name__
        if torch.Tag.nondeterministic_seeded not in func.tags and name not in _UNTAGGED:
            return func(*args, **kwargs)
        before = torch_state()
        own = self._is_own(kwargs.get("generator"))
        result = func(*args, **kwargs)
        # Only what really draws counts: dropout with p=0 does not, and must leave the script's stream alone.
        drew = own or not same_state(before, torch_state())
        self.seen.draws = self.seen.draws or drew
        if drew and name == "native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if drew and name.startswith("rrelu_with_noise"):
            return _leaky(func, *args[:2])
        if name in _CONSTANTS and isinstance(result, torch.Tensor):
            return result.fill_(_CONSTANTS[name])
        return result

    def _is_own(self, generator: torch.Generator | None) -> bool:
        if generator is None or generator is torch.default_generator:
            return False
        self.seen.generator = True
        self.generators.setdefault(generator, generator.get_state())
        return True


def _leaky(func: Any, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """What stands for a leaky ReLU with random slopes: one with a fixed slope."""
    slope = torch.where(x > 0, 1.0, 0.25).to(x.dtype)
    noise.copy_(slope)
    return x.mul_(slope) if func.overloadpacket.__name__.endswith("_") else x * slope


@contextmanager
def deterministic_random(module: nn.Module) -> Iterator[Seen]:
    """Within: torch's random operations give constants; after: all streams stand where they stood.

    Gives notes on what the module did.
    """
    mode: Any = _Deterministic(module)
    try:
        with kept_streams(), uncompiled():
            before = torch_state()
            with mode, _Validations():
                yield mode.seen
            # Also what operations drew that torch does not call random (`random_`, `binomial`).
            mode.seen.draws = mode.seen.draws or not same_state(before, torch_state())
            mode.seen.python = pickle.dumps(all_states()[1:])
    finally:
        for generator, state in mode.generators.items():
            generator.set_state(state)
