"""Random small programs over whole, sharded and partial values: the same values, gradients and errors as plain.

Run under Samestep: `samestep run --devices cpu:3 random_programs.py [--programs K] [--shrink] [--trace]`.
A program is a list of 10 to 30 operations drawn by hypothesis from `OPERATIONS`, applied to values made so far, then a
scalar loss and a backward. It is run once on plain tensors and once with some of its inputs sharded, evenly, unevenly
or with an empty shard. Hypothesis runs on every rank and draws the same there (`derandomize`); the ranks agree on each
verdict, so they also shrink a failing program alike (with `--shrink`: that stops by the clock, so a rank could be left
waiting). Prints the program that failed, or the number that did not; exits with 1 if one did.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import samestep

T = TypeVar("T")
Values = list[torch.Tensor]
ROWS, COLUMNS = 7, 4


class Tape:
    """Choices: drawn at the first run of a program, repeated at the second.

    Kept by operation, so that one that raises half-way does not shift the choices of those that follow.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self._recorded: list[list[Any]] = []
        self._operation = self._position = -1
        self._repeating = False

    def rewind(self) -> None:
        """From now on the same again."""
        self._operation, self._repeating = -1, True

    def next_operation(self) -> None:
        """What follows are the choices of another operation."""
        self._operation += 1
        self._position = 0
        if not self._repeating:
            self._recorded.append([])

    def _next(self, draw: Callable[[], Any]) -> Any:
        taken = self._recorded[self._operation]
        self._position += 1
        if self._position > len(taken):
            taken.append(draw())
        return taken[self._position - 1]

    def randrange(self, start: int, stop: int | None = None) -> int:
        """As `random.Random.randrange`."""
        low, high = (0, start) if stop is None else (start, stop)
        if low >= high:
            raise ValueError("nothing to choose from")
        return int(self._next(lambda: self._source.randrange(low, high)))

    def random(self) -> float:
        """As `random.Random.random`."""
        return float(self._next(self._source.random))

    def choice(self, sequence: Sequence[T]) -> T:
        """As `random.Random.choice`."""
        if not sequence:
            raise IndexError("nothing to choose from")
        return sequence[self.randrange(len(sequence))]


def matrices(values: Values) -> Values:
    return [v for v in values if v.dim() == 2]


def pick(rng: Tape, values: Values) -> torch.Tensor:
    return rng.choice(values)


def binary(name: str) -> Callable[[Tape, Values], torch.Tensor]:
    def apply(rng: Tape, values: Values) -> torch.Tensor:
        result: torch.Tensor = getattr(torch, name)(pick(rng, values), pick(rng, values))
        return result

    return apply


def unary(name: str, *args: Any, **kwargs: Any) -> Callable[[Tape, Values], torch.Tensor]:
    def apply(rng: Tape, values: Values) -> torch.Tensor:
        result = getattr(torch.Tensor, name)(pick(rng, values), *args, **kwargs)
        return result if isinstance(result, torch.Tensor) else result[0]

    return apply


def chosen_dim(name: str, keepdim: bool | None = None) -> Callable[[Tape, Values], torch.Tensor]:
    def apply(rng: Tape, values: Values) -> torch.Tensor:
        x = pick(rng, [v for v in values if v.dim() > 0])
        dim = rng.randrange(-x.dim(), x.dim())
        kwargs = {} if keepdim is None else {"keepdim": keepdim}
        result = getattr(torch.Tensor, name)(x, dim, **kwargs)
        return result if isinstance(result, torch.Tensor) else result[0]

    return apply


def scaled(rng: Tape, values: Values) -> torch.Tensor:
    x, number = pick(rng, values), rng.choice([2.0, 0.5, -1.5, 3])
    return rng.choice(
        [lambda: x * number, lambda: number * x, lambda: x / number, lambda: x + number, lambda: number - x]
    )()


def in_place(rng: Tape, values: Values) -> torch.Tensor:
    x = pick(rng, values).clone()
    y = pick(rng, [v for v in values if v.dim() <= x.dim()])
    what = rng.randrange(5)
    if what == 0:
        x += y
    elif what == 1:
        x.mul_(0.5)
    elif what == 2:
        x -= 1.0
    elif what == 3:
        x.clamp_(-1, 1)
    else:
        x.add_(y, alpha=0.5)
    return x


def indexed(rng: Tape, values: Values) -> torch.Tensor:
    x = pick(rng, matrices(values))
    what = rng.randrange(8)
    if what == 0:
        return x[rng.randrange(x.size(0))]
    if what == 1:
        return x[:, rng.randrange(x.size(1))]
    if what == 2:
        low = rng.randrange(x.size(0))
        return x[low : low + 1 + rng.randrange(3)]
    if what == 3:
        return x[..., : 1 + rng.randrange(x.size(1))]
    if what == 4:
        return x[x[:, 0] > 0]
    if what == 5:
        return x[torch.randperm(x.size(0), generator=torch.Generator().manual_seed(rng.randrange(99)))]
    if what == 6:
        return x[:, None, :]
    return x[x > 0]


def written(rng: Tape, values: Values) -> torch.Tensor:
    x = pick(rng, matrices(values)).clone()
    what = rng.randrange(5)
    if what == 0:
        x[:, 0] = 0.5
    elif what == 1:
        x[x > 0.3] = 0.25
    elif what == 2:
        x[rng.randrange(x.size(0))] = 1.5
    elif what == 3:
        x[:, 1:].mul_(2.0)
    else:
        x[:, 0] = x[:, -1] * 2
    return x


def shaped(rng: Tape, values: Values) -> torch.Tensor:
    x = pick(rng, values)
    what = rng.randrange(7)
    if what == 0:
        return x.reshape(-1)
    if what == 1 and x.dim() == 2:
        return x.t()
    if what == 2:
        return x.unsqueeze(rng.randrange(x.dim() + 1))
    if what == 3:
        return x.squeeze()
    if what == 4 and x.dim() >= 1:
        return x.flatten(0)
    if what == 5 and x.dim() == 2 and x.size(1) % 2 == 0:
        return x.view(x.size(0), 2, -1) if x.is_contiguous() else x.reshape(x.size(0), 2, -1)
    return x.expand(2, *x.shape)


def joined(rng: Tape, values: Values) -> torch.Tensor:
    x = pick(rng, [v for v in values if v.dim() > 0])
    alike = [v for v in values if v.shape == x.shape]
    parts = [x, pick(rng, alike)]
    dim = rng.randrange(-x.dim(), x.dim())
    return torch.cat(parts, dim) if rng.random() < 0.5 else torch.stack(parts, dim)


def product(rng: Tape, values: Values) -> torch.Tensor:
    x, y = pick(rng, matrices(values)), pick(rng, matrices(values))
    if x.size(1) == y.size(0):
        return x @ y
    return x @ y.t() if x.size(1) == y.size(1) else x.t() @ y


def loss_of(rng: Tape, values: Values) -> torch.Tensor:
    x = pick(rng, matrices(values))
    what = rng.randrange(4)
    if what == 0:
        return F.mse_loss(x, torch.tanh(x.detach()) * 0.5)
    if what == 1:
        return F.cross_entropy(x, x.detach().argmax(1))
    if what == 2:
        return F.smooth_l1_loss(x, x.detach() * 0.9, reduction="sum")
    return F.binary_cross_entropy_with_logits(x, (x.detach() > 0).float())


OPERATIONS: list[Callable[[Tape, Values], torch.Tensor]] = [
    *[binary(n) for n in ("add", "sub", "mul", "maximum")],
    *[
        unary(n)
        for n in ("tanh", "neg", "abs", "sigmoid", "relu", "clone", "detach", "sum", "mean", "max", "contiguous")
    ],
    *[chosen_dim(n) for n in ("sum", "mean", "softmax", "cumsum", "sort", "unbind")],
    *[chosen_dim(n, True) for n in ("amax", "logsumexp", "max")],
    *[scaled, in_place, indexed, written, shaped, joined, product, loss_of] * 3,
]


def inputs(rng: Tape, sharded: bool) -> tuple[Values, Values]:
    """Leaves that take gradients, and the values that the program starts from."""
    rng.next_operation()
    generator = torch.Generator().manual_seed(rng.randrange(1000))
    leaves = [torch.randn(n, generator=generator).requires_grad_() for n in ((ROWS, COLUMNS),) * 3]
    leaves += [torch.randn(n, generator=generator).requires_grad_() for n in ((COLUMNS, COLUMNS), (COLUMNS,), ())]
    values: Values = [leaf * 1.0 for leaf in leaves]
    ranks = samestep.world_size()
    even = samestep.world.current().split(ROWS)
    patterns = [even, even, (0, *[1] * (ranks - 2), ROWS - ranks + 2), (ROWS - ranks + 1, *[1] * (ranks - 1))]
    for i in range(3):
        chosen, pattern = i == 0 or rng.random() < 0.5, rng.choice(patterns)
        if sharded and chosen:
            values[i] = samestep.shard(values[i], 0, pattern)
    return leaves, values


def run(rng: Tape, sharded: bool, trace: bool = False) -> Any:
    """What the program computes: every value, and the gradients; or the type of its error."""
    leaves, values = inputs(rng, sharded)
    torch.manual_seed(5)
    outcome: list[Any] = []
    rng.next_operation()
    for _ in range(10 + rng.randrange(21)):
        rng.next_operation()
        operation = rng.choice(OPERATIONS)
        try:
            result = operation(rng, values)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            outcome.append(type(error).__name__)
            continue
        if trace and samestep.is_main():
            print(len(outcome), operation.__qualname__, tuple(result.shape), type(result).__name__, file=sys.stderr)
        if 0 < result.numel() <= 2000 and result.is_floating_point():
            values.append(result)
        outcome.append(result)
    loss = sum((v * 0.1).sum() for v in values[6:] if v.requires_grad) + sum((v * v).sum() for v in values[:6])
    loss.backward()  # type: ignore[union-attr]
    return [samestep.whole(o).detach() if isinstance(o, torch.Tensor) else o for o in outcome] + [
        x.grad for x in leaves
    ]


def differs(plain: list[Any], ours: list[Any]) -> str:
    """Empty if equal."""
    for i, (a, b) in enumerate(zip(plain, ours, strict=True)):
        if isinstance(a, torch.Tensor) != isinstance(b, torch.Tensor) or (not isinstance(a, torch.Tensor) and a != b):
            return f"step {i}: {a if not isinstance(a, torch.Tensor) else a.shape} but {b}"
        if isinstance(a, torch.Tensor):
            if a.shape != b.shape or a.dtype != b.dtype:
                return f"step {i}: {a.shape} {a.dtype} but {b.shape} {b.dtype}"
            scale = float(a.abs().max()) if a.numel() else 0.0
            if not torch.allclose(a, b, rtol=1e-4, atol=1e-5 * max(1.0, scale), equal_nan=True):
                return f"step {i}: values differ by {float((a - b).abs().max()):.2e} of {scale:.2e}"
    return ""


def failure_of(rng: Tape, trace: bool = False) -> str:
    """Empty if the program does the same on plain and on sharded tensors, on every rank."""
    plain = run(rng, False)
    rng.rewind()
    try:
        why = differs(plain, run(rng, True, trace))
    except Exception as error:
        why = f"raised {type(error).__name__}: {str(error)[:200]}"
    everyone = samestep.world.current().all_gather_objects(why)
    return next((f"rank {r}: {w}" for r, w in enumerate(everyone) if w), "")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    done = 0

    @settings(
        max_examples=options.programs,
        derandomize=True,  # the same programs on every rank, and every day
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink) if options.shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(source=st.randoms(use_true_random=False))
    def a_program_does_the_same(source: Any) -> None:
        nonlocal done
        done += 1
        why = failure_of(Tape(source), options.trace)
        assert not why, why

    try:
        a_program_does_the_same()
    except AssertionError as error:
        print(f"program {done}: {str(error).splitlines()[0]}", flush=True)
        sys.exit(1)
    print(f"{done} programs, 0 failures")


if __name__ == "__main__":
    main()
