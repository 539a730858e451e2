"""Random small programs over whole, sharded and partial values: the same values, gradients and errors as plain.

Run under Samestep: `samestep run --devices cpu:3 random_programs.py [--programs K] [--first SEED] [--trace]`.
A program is a list of 10 to 25 operations drawn from `OPERATIONS`, applied to values made so far, then a scalar loss
and a backward. It is run once on plain tensors and once with some of its inputs sharded, evenly, unevenly or with an
empty shard. Prints a line per failing seed and a summary; exits with 1 if there was any failure.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import samestep

Values = list[torch.Tensor]
ROWS, COLUMNS = 7, 4


def matrices(values: Values) -> Values:
    return [v for v in values if v.dim() == 2]


def pick(rng: random.Random, values: Values) -> torch.Tensor:
    return rng.choice(values)


def binary(name: str) -> Callable[[random.Random, Values], torch.Tensor]:
    def apply(rng: random.Random, values: Values) -> torch.Tensor:
        result: torch.Tensor = getattr(torch, name)(pick(rng, values), pick(rng, values))
        return result

    return apply


def unary(name: str, *args: Any, **kwargs: Any) -> Callable[[random.Random, Values], torch.Tensor]:
    def apply(rng: random.Random, values: Values) -> torch.Tensor:
        result = getattr(torch.Tensor, name)(pick(rng, values), *args, **kwargs)
        return result if isinstance(result, torch.Tensor) else result[0]

    return apply


def chosen_dim(name: str, keepdim: bool | None = None) -> Callable[[random.Random, Values], torch.Tensor]:
    def apply(rng: random.Random, values: Values) -> torch.Tensor:
        x = pick(rng, [v for v in values if v.dim() > 0])
        dim = rng.randrange(-x.dim(), x.dim())
        kwargs = {} if keepdim is None else {"keepdim": keepdim}
        result = getattr(torch.Tensor, name)(x, dim, **kwargs)
        return result if isinstance(result, torch.Tensor) else result[0]

    return apply


def scaled(rng: random.Random, values: Values) -> torch.Tensor:
    x, number = pick(rng, values), rng.choice([2.0, 0.5, -1.5, 3])
    return rng.choice(
        [lambda: x * number, lambda: number * x, lambda: x / number, lambda: x + number, lambda: number - x]
    )()


def in_place(rng: random.Random, values: Values) -> torch.Tensor:
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


def indexed(rng: random.Random, values: Values) -> torch.Tensor:
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


def written(rng: random.Random, values: Values) -> torch.Tensor:
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


def shaped(rng: random.Random, values: Values) -> torch.Tensor:
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


def joined(rng: random.Random, values: Values) -> torch.Tensor:
    x = pick(rng, [v for v in values if v.dim() > 0])
    alike = [v for v in values if v.shape == x.shape]
    parts = [x, pick(rng, alike)]
    dim = rng.randrange(-x.dim(), x.dim())
    return torch.cat(parts, dim) if rng.random() < 0.5 else torch.stack(parts, dim)


def product(rng: random.Random, values: Values) -> torch.Tensor:
    x, y = pick(rng, matrices(values)), pick(rng, matrices(values))
    if x.size(1) == y.size(0):
        return x @ y
    return x @ y.t() if x.size(1) == y.size(1) else x.t() @ y


def loss_of(rng: random.Random, values: Values) -> torch.Tensor:
    x = pick(rng, matrices(values))
    what = rng.randrange(4)
    if what == 0:
        return F.mse_loss(x, torch.tanh(x.detach()) * 0.5)
    if what == 1:
        return F.cross_entropy(x, x.detach().argmax(1))
    if what == 2:
        return F.smooth_l1_loss(x, x.detach() * 0.9, reduction="sum")
    return F.binary_cross_entropy_with_logits(x, (x.detach() > 0).float())


OPERATIONS: list[Callable[[random.Random, Values], torch.Tensor]] = [
    *[binary(n) for n in ("add", "sub", "mul", "maximum")],
    *[
        unary(n)
        for n in ("tanh", "neg", "abs", "sigmoid", "relu", "clone", "detach", "sum", "mean", "max", "contiguous")
    ],
    *[chosen_dim(n) for n in ("sum", "mean", "softmax", "cumsum", "sort", "unbind")],
    *[chosen_dim(n, True) for n in ("amax", "logsumexp", "max")],
    *[scaled, in_place, indexed, written, shaped, joined, product, loss_of] * 3,
]


def inputs(seed: int, sharded: bool) -> tuple[Values, Values]:
    """Leaves that take gradients, and the values that the program starts from."""
    generator = torch.Generator().manual_seed(seed)
    leaves = [torch.randn(n, generator=generator).requires_grad_() for n in ((ROWS, COLUMNS),) * 3]
    leaves += [torch.randn(n, generator=generator).requires_grad_() for n in ((COLUMNS, COLUMNS), (COLUMNS,), ())]
    values: Values = [leaf * 1.0 for leaf in leaves]
    if sharded:
        rng = random.Random(seed)
        ranks = samestep.world_size()
        even = samestep.world.current().split(ROWS)
        patterns = [even, even, (0, *[1] * (ranks - 2), ROWS - ranks + 2), (ROWS - ranks + 1, *[1] * (ranks - 1))]
        for i in range(3):
            if i == 0 or rng.random() < 0.5:
                values[i] = samestep.shard(values[i], 0, rng.choice(patterns))
    return leaves, values


def run(seed: int, sharded: bool, trace: bool = False) -> Any:
    """What the program computes: every value, and the gradients; or the type of its error."""
    leaves, values = inputs(seed, sharded)
    rng = random.Random(seed + 1)
    torch.manual_seed(seed)
    outcome: list[Any] = []
    for _ in range(rng.randint(10, 25)):
        operation = rng.choice(OPERATIONS)
        state = rng.getstate()
        try:
            result = operation(rng, values)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            rng.setstate(state)
            rng.random()
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    failures = 0
    for seed in range(options.first, options.first + options.programs):
        print(f"seed {seed}", file=sys.stderr, flush=True)
        plain = run(seed, False)
        try:
            why = differs(plain, run(seed, True, options.trace))
        except Exception as error:
            why = f"raised {type(error).__name__}: {str(error)[:200]}"
        everyone = samestep.world.current().all_gather_objects(why)
        why = next((f"rank {r}: {w}" for r, w in enumerate(everyone) if w), "")
        if why:
            failures += 1
            print(f"seed {seed}: {why}", flush=True)
    print(f"{options.programs} programs, {failures} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
