"""`--exact-random`: what modules draw is what one device draws, and the streams stand where one device's stand."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import samestep
from inside.claims import case, patterns, same, same_gradients, same_weights, true, twins, world
from inside.ways_to_draw import WAYS, Draw, Noisy
from samestep.ledger import LEDGER
from samestep.numerics import Numerics, choose

choose(Numerics(exact_random=True))  # the checks of a file have ranks of their own

ROWS = 7


def _data(*dims: int) -> torch.Tensor:
    torch.manual_seed(8)
    return torch.randn(ROWS, *dims, 3)


def _step(model: nn.Module, x: torch.Tensor, steps: int = 3) -> list[Any]:
    seen: list[Any] = []
    torch.manual_seed(21)
    random.seed(3)
    np.random.seed(4)
    for _ in range(steps):
        tracked = x.detach().clone().requires_grad_()
        out = model(tracked)
        out.pow(2).mean().backward()
        # What the script draws afterwards: also normal numbers, of which torch keeps one in stock.
        seen += [out.detach(), tracked.grad, torch.rand(3), torch.randn(1), random.random(), float(np.random.rand())]
    return seen


def _as_on_one_device(
    make: Callable[[], nn.Module],
    x: torch.Tensor,
    step: Callable[..., Any] = _step,
    *,
    split: bool | None = True,
    dim: int = 0,
    scale: float = 1.0,
) -> None:
    """`step`'s results, gradients and weights are those of one device; `split`: whether the whole module is."""
    truth = twins(make)[1]
    expected = step(truth, x)
    for sizes in _sizes(x.size(dim)):
        with case(sizes):
            LEDGER.regions.clear()
            ours = twins(make)[0]
            same(step(ours, samestep.shard(x, dim, sizes)), expected, "returned", scale=scale)
            same_gradients(ours, truth, scale=scale)
            same_weights(ours, truth, scale=scale)
            top = next(iter(LEDGER.regions.values()), "computed whole")
            true(split is None or (top == "split") == split, f"the plan was: {LEDGER.regions}")


def _sizes(rows: int) -> list[tuple[int, ...]]:
    """Evenly, and one row on all ranks but the last; rows that are all on one rank are dealt out again."""
    ways = patterns(rows)
    return [ways[0], ways[-1]]


def _third_of_the_ways(number: int) -> None:
    for name, draw in list(WAYS.items())[number::3]:
        with case(name):
            _as_on_one_device(lambda draw=draw: Noisy(draw), _data(), lambda m, x: _step(m, x, 2))


def check_every_way_to_draw() -> None:
    _third_of_the_ways(0)


def check_every_way_to_draw_continued() -> None:
    _third_of_the_ways(1)


def check_every_way_to_draw_to_the_end() -> None:
    _third_of_the_ways(2)


def check_many_rows_and_features() -> None:
    """Beyond the sizes at which torch's kernels change how they draw (16 and more at once)."""
    torch.manual_seed(1)
    x = torch.randn(41, 3)
    for name in ("dropout", "randn_like", "rand_like", "bernoulli", "normal_ and uniform_", "transposed"):
        with case(name):
            _as_on_one_device(lambda name=name: Noisy(WAYS[name], width=37), x, lambda m, x: _step(m, x, 1), scale=5)


def check_dropout_of_channels() -> None:
    drops: dict[str, tuple[tuple[int, ...], nn.Module]] = {
        "1d": ((4,), nn.Dropout1d(0.5)),
        "2d": ((4, 5), nn.Dropout2d(0.5)),
        "3d": ((4, 2, 3), nn.Dropout3d(0.5)),
        "feature alpha": ((4, 5), nn.FeatureAlphaDropout(0.5)),
        "alpha": ((4, 5), nn.AlphaDropout(0.5)),
    }
    for name, (dims, drop) in drops.items():
        with case(name):
            _as_on_one_device(lambda drop=drop: Noisy(lambda m, x: m.inner(x), lambda: drop), _data(*dims))


def check_channels_last() -> None:
    class Image(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(3, 6, 2), nn.Dropout(0.4), nn.ReLU(), nn.Dropout2d(0.3), nn.Conv2d(6, 2, 1)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.net(x)
            return x + torch.randn_like(x)

    image = torch.randn(ROWS, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    _as_on_one_device(lambda: Image().to(memory_format=torch.channels_last), image, scale=10)
    _as_on_one_device(Image, image.contiguous(), scale=10)


def check_attention() -> None:
    class Attention(nn.Module):
        def __init__(self, weights: bool, batch_first: bool = True) -> None:
            super().__init__()
            self.weights = weights
            self.layer = nn.MultiheadAttention(4, 2, dropout=0.4, batch_first=batch_first)

        def forward(self, x: torch.Tensor) -> Any:
            out, seen = self.layer(x, x, x, need_weights=self.weights)
            return out if seen is None else (out, seen)

    def step(model: nn.Module, x: torch.Tensor) -> list[Any]:
        torch.manual_seed(2)
        out = model(x)
        out = out if isinstance(out, tuple) else (out,)
        sum(t.pow(2).mean() for t in out).backward()  # type: ignore[union-attr]
        return [*(t.detach() for t in out), torch.rand(2)]

    torch.manual_seed(1)
    x = torch.randn(ROWS, 5, 4)
    for weights in (True, False):
        with case(weights):
            _as_on_one_device(lambda weights=weights: Attention(weights), x, step)
    with case("time first"):
        _as_on_one_device(lambda: Attention(False, False), x.transpose(0, 1).contiguous(), step, dim=1)
    with case("as a function"):
        _as_on_one_device(
            lambda: Noisy(lambda m, x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.3)), _data(5), scale=5
        )


def check_transformer_and_recurrent_layers() -> None:
    layers: dict[str, Callable[[], nn.Module]] = {
        "encoder": lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True), 2, enable_nested_tensor=False
        ),
        "LSTM": lambda: _First(nn.LSTM(4, 4, 3, dropout=0.4, batch_first=True)),
        "GRU, both ways": lambda: _First(nn.GRU(4, 2, 2, dropout=0.4, batch_first=True, bidirectional=True)),
        "RNN": lambda: _First(nn.RNN(4, 4, 2, dropout=0.4, batch_first=True)),
    }
    for name, layer in layers.items():
        with case(name):
            _as_on_one_device(lambda layer=layer: Noisy(lambda m, x: m.inner(x), layer), _data(5), scale=10)


class _First(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


def check_what_cannot_be_cut_is_opened() -> None:
    ways: dict[str, Draw] = {
        "rows shuffled": lambda m, x: x[torch.randperm(x.size(0))],
        "rows by rows": lambda m, x: x * torch.rand(x.size(0), x.size(0)).mean(1, keepdim=True),
        "a row of the batch": lambda m, x: x + x[torch.randint(0, x.size(0), (x.size(0),))],
        "time before rows": lambda m, x: x * torch.rand(4 * x.size(0)).view(4, x.size(0)).t(),
        "row by row": lambda m, x: torch.stack([F.dropout(row, 0.5) for row in x]),
        "while it is small": lambda m, x: x * _drawn_until(x),
        "depends on a draw": lambda m, x: x if float(torch.rand(())) < 0.5 else x * 2,
    }
    for name, draw in ways.items():
        with case(name):
            _as_on_one_device(lambda draw=draw: Noisy(draw), _data(), split=False)


def _drawn_until(x: torch.Tensor) -> torch.Tensor:
    return sum((torch.rand(1) for _ in range(x.size(0))), torch.zeros(1))


def check_activations_computed_again() -> None:
    class Again(Noisy):
        ways: tuple[bool, bool] = (True, True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            reentrant, preserve = self.ways
            for _ in range(2):
                x = checkpoint(super().forward, x, use_reentrant=reentrant, preserve_rng_state=preserve)
                x = torch.cat([x, x[:, :1]], 1)
            return x

    def draw(m: Any, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x.tanh(), 0.4) + torch.randn(x.size(0), 1) * torch.rand(1)

    for reentrant in (True, False):
        for preserve in (True, False):
            with case((reentrant, preserve)):

                class Way(Again):
                    ways = (reentrant, preserve)

                _as_on_one_device(lambda kind=Way: kind(draw), _data())
    with case("outside"):
        _as_on_one_device(
            lambda: Noisy(draw),
            _data(),
            lambda model, x: _step(lambda rows: checkpoint(model, rows, use_reentrant=False), x),  # type: ignore[arg-type]
        )


def check_turns_of_training_and_evaluation() -> None:
    def turns(model: nn.Module, x: torch.Tensor) -> list[Any]:
        torch.manual_seed(5)
        seen: list[Any] = []
        for training in (True, False, True):
            model.train(training)
            with torch.set_grad_enabled(training):
                seen += [model(x).detach(), torch.rand(2)]
        model.train()
        with torch.inference_mode():
            seen += [samestep.whole(model(x)).clone(), torch.rand(2)]
        return seen

    net = lambda: Noisy(lambda m, x: m.inner(x), lambda: nn.Sequential(nn.Dropout(0.4), nn.RReLU(), nn.AlphaDropout()))  # noqa: E731
    _as_on_one_device(net, _data(), turns)
    _as_on_one_device(lambda: _First(nn.LSTM(3, 3, 2, dropout=0.5, batch_first=True)), _data(4), turns)


def check_parts_that_the_check_did_not_see() -> None:
    """A branch that Python's random numbers take, and one that nothing of the module shows."""

    class Depth(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                if random.random() < 0.5:
                    x = x + F.dropout(layer(x), 0.5)
            if TOLD:
                x = x + torch.randn(x.size(0), 1)
            return x

    def step(model: nn.Module, x: torch.Tensor) -> list[Any]:
        TOLD.clear()
        seen = _step(model, x, 4)
        TOLD.append(1)
        return seen + _step(model, x, 4)

    _as_on_one_device(Depth, _data(), step)


TOLD: list[int] = []


def check_one_place_that_draws_in_several_shapes() -> None:
    def draw(m: Any, x: torch.Tensor) -> torch.Tensor:
        for shape in ((x.size(0), 1), (4,), (4, x.size(0)), (1, 4)):
            noise = torch.randn(shape)
            x = x + (noise.t() if noise.shape == (4, x.size(0)) and x.size(0) != 4 else noise.reshape(-1)[:1])
        return x

    # Shapes that are told apart by their size: the check looks at 2 rows per rank.
    _as_on_one_device(lambda: Noisy(draw), _data(), split=None)


def check_a_generator_of_the_modules_own() -> None:
    class Own(Noisy):
        def __init__(self) -> None:
            super().__init__(lambda m, x: x + torch.randn(x.shape, generator=m.generator))
            self.generator = torch.Generator().manual_seed(2)

    _as_on_one_device(Own, _data())


def check_with_batch_norm_and_mixed_precision() -> None:
    def draw(m: Any, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(m.inner(x), 0.3)

    _as_on_one_device(lambda: Noisy(draw, lambda: nn.BatchNorm1d(4)), _data(), scale=10)

    def mixed(model: nn.Module, x: torch.Tensor) -> list[Any]:
        torch.manual_seed(5)
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
        out.float().pow(2).mean().backward()
        return [out.detach(), torch.rand(2)]

    _as_on_one_device(lambda: Noisy(draw), _data(), mixed, scale=3000)


def check_few_rows() -> None:
    for rows in (1, 2, world().size - 1, world().size):
        with case(rows):
            _as_on_one_device(lambda: Noisy(WAYS["dropout"]), _data()[:rows], split=None)


def check_script_and_modules_share_one_stream() -> None:
    def step(model: Any, x: torch.Tensor) -> list[Any]:
        torch.manual_seed(5)
        noisy = x + torch.randn_like(x) * 0.1
        first = F.dropout(model(noisy), 0.3)
        order = torch.randperm(len(x))
        second = model(x[order])
        (first + second).pow(2).mean().backward()
        return [first.detach(), second.detach(), order, torch.rand(1)]

    _as_on_one_device(lambda: Noisy(WAYS["dropout"]), _data(), step)


def check_wrapped_in_data_parallel() -> None:
    _as_on_one_device(lambda: nn.DataParallel(Noisy(WAYS["dropout"])), _data(), split=None)


def check_what_is_drawn_for_all_rows_at_once() -> None:
    """DropConnect, and noise that the module returns."""

    def draw(m: Any, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, F.dropout(m.inner.weight, 0.5)) + F.dropout(x, 0.5)

    _as_on_one_device(lambda: Noisy(draw, lambda: nn.Linear(4, 4)), _data())
