"""Random numbers: a region draws from a stream of the rank's own, and the script's stream is alike on all ranks.

On one device a module that draws moves the script's stream, and one that does not leaves it alone: so here, where it is
moved alike on every rank, whatever a rank drew.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import samestep
from inside.claims import case, patterns, same, true, world

ROWS = 6


def _draws() -> list[Any]:
    return [torch.rand(3), torch.randperm(5), random.random(), float(np.random.rand()), torch.randn(2)]


class Noisy(nn.Module):
    """Draws in every way that modules draw."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.layer(x)) + torch.randn_like(x) * 0.1
        return x + torch.rand(x.size(0), 1) + torch.bernoulli(torch.full_like(x, 0.5))


def _seed() -> None:
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)


def check_a_module_that_does_not_draw_leaves_the_streams_alone() -> None:
    """Draws between the calls are those of one process, in training and in evaluation."""
    x = torch.linspace(-1, 1, ROWS * 4).view(ROWS, 4)
    for training in (True, False):
        _seed()
        truth = [_draws() for _ in range(4)]
        for sizes in patterns(ROWS):
            with case((training, sizes)):
                drop = nn.Dropout(0.5).eval()
                model = nn.Sequential(nn.Linear(4, 4), nn.Identity() if training else drop).train(training)
                _seed()
                got = []
                for _ in range(4):
                    got.append(_draws())
                    model(samestep.shard(x, 0, sizes)).sum().backward()
                same(got, truth, "the script's draws")


def check_a_module_that_draws_moves_the_streams_alike() -> None:
    x = torch.linspace(-1, 1, ROWS * 4).view(ROWS, 4)
    for sizes in patterns(ROWS):
        with case(sizes):
            model = Noisy()
            _seed()
            got = []
            for _ in range(4):
                got.append([v.tolist() if hasattr(v, "tolist") else v for v in _draws()])
                model(samestep.shard(x, 0, sizes)).sum().backward()
            everyone = world().all_gather_objects(got)
            true(all(one == everyone[0] for one in everyone), "the ranks draw differently")
            true(len({str(draws[0]) for draws in got}) == 4, "the script draws the same again and again")
            _seed()
            again = []
            for _ in range(4):
                again.append([v.tolist() if hasattr(v, "tolist") else v for v in _draws()])
                model(samestep.shard(x, 0, sizes)).sum().backward()
            true(again == got, "a seeded run cannot be repeated")


def check_what_the_script_draws_is_alike_after_everything() -> None:
    """Whatever was split, opened or whole: the ranks must go on drawing alike."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    opened = Noisy()
    x = torch.randn(ROWS, 4)
    for sizes in patterns(ROWS):
        with case(sizes):
            sharded = samestep.shard(x, 0, sizes)
            F.dropout(model(sharded), 0.5).sum().backward()
            torch.rand_like(sharded)
            sharded.clone().normal_()
            (sharded > 0).float().bernoulli()
            model(sharded[:1])
            model(sharded[sharded[:, 0] > 0])
            opened(sharded - sharded.mean(0))
            torch.multinomial(sharded.softmax(1), 1)
            everyone = world().all_gather_objects([torch.rand(2).tolist(), random.random(), float(np.random.rand())])
            true(all(one == everyone[0] for one in everyone), f"the ranks draw differently: {everyone}")


def check_script_level_draws_are_those_of_one_device() -> None:
    x = torch.linspace(0.05, 0.95, ROWS * 4).view(ROWS, 4)
    ways: dict[str, Any] = {
        "rand_like": torch.rand_like,
        "randn_like": torch.randn_like,
        "randint_like": lambda t: torch.randint_like(t, 10),
        "bernoulli": torch.bernoulli,
        "bernoulli p": lambda t: t.bernoulli(0.3),
        "dropout": lambda t: F.dropout(t, 0.5),
        "multinomial": lambda t: torch.multinomial(t, 2),
        "normal_": lambda t: t.clone().normal_(),
        "uniform_": lambda t: t.clone().uniform_(2, 3),
        "normal": lambda t: torch.normal(t, 0.1),
        "poisson": lambda t: torch.poisson(t * 5),
        "rrelu": lambda t: F.rrelu(t - 0.5, training=True),
        "gumbel": lambda t: F.gumbel_softmax(t.log(), hard=True),
        "shuffled": lambda t: t[torch.randperm(t.size(0))],
        "exponential_": lambda t: t.clone().exponential_(),
        "mixup": lambda t: 0.3 * t + 0.7 * t[torch.randperm(len(t))],
    }
    for name, way in ways.items():
        torch.manual_seed(9)
        truth, after = way(x), torch.rand(2)
        for sizes in patterns(ROWS):
            with case((name, sizes)):
                torch.manual_seed(9)
                same(way(samestep.shard(x, 0, sizes)), truth)
                same(torch.rand(2), after, "the stream afterwards")


def check_masks_differ_between_rows_and_calls() -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5))
    nn.init.zeros_(model[0].weight)
    nn.init.ones_(model[0].bias)
    x = samestep.shard(torch.randn(world().size * 2, 8))
    first, second = (samestep.whole(model(x)) != 0 for _ in range(2))
    rows = {tuple(row.tolist()) for row in (*first, *second)}
    true(len(rows) == 4 * world().size, f"only {len(rows)} different masks of 32 among {4 * world().size} rows")


def check_a_seed_gives_the_same_masks_again() -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5))
    x = samestep.shard(torch.randn(world().size * 2, 8))
    outs = []
    for seed in (4, 4, 5):
        torch.manual_seed(seed)
        outs.append(samestep.whole(model(x)).detach())
    same(outs[0], outs[1], "the same seed")
    true(not torch.equal(outs[0], outs[2]), "another seed gave the same masks")


def check_a_saved_state_gives_the_same_masks_again() -> None:
    """`get_rng_state`/`set_rng_state`, as checkpointing and resuming do."""
    model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5))
    x = samestep.shard(torch.randn(world().size * 2, 8))
    torch.manual_seed(4)
    model(x)
    with torch.random.fork_rng():
        inside = torch.rand(2)
    same(torch.rand(2), inside, "fork_rng")


def check_masks_are_the_same_when_activations_are_computed_again() -> None:
    """Checkpointing runs a module a second time in backward: with other masks the gradients would be wrong."""

    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5))
            nn.init.ones_(self.net[0].bias)
            nn.init.zeros_(self.net[0].weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.net, x * self.net[0].bias[0], use_reentrant=False)

    x = torch.randn(ROWS, 4)
    for reentrant in (False, True):
        for sizes in patterns(ROWS):
            with case(("outside", reentrant, sizes)):
                model = Inside()
                tracked = x.clone().requires_grad_()
                out = checkpoint(model.net, samestep.shard(tracked, 0, sizes), use_reentrant=reentrant)
                out.sum().backward()
                kept = samestep.whole(out.detach()) != 0
                same(model.net[0].bias.grad, 2.0 * kept.sum(0), "gradient of the bias")
    for sizes in patterns(ROWS):
        with case(("inside", sizes)):
            model = Inside()
            out = model(samestep.shard(x, 0, sizes))
            out.sum().backward()
            kept = samestep.whole(out.detach()) != 0
            same(model.net[0].bias.grad, 2.0 * kept.sum(0), "gradient of the bias")


def check_evaluation_is_not_random() -> None:
    model = Noisy().eval()
    model.forward = lambda x: model.drop(model.layer(x))  # type: ignore[method-assign]
    x = torch.randn(ROWS, 4)
    expected = model.layer(x).detach()
    for sizes in patterns(ROWS):
        with case(sizes):
            same(model(samestep.shard(x, 0, sizes)), expected)


#: What `Late` goes by.
TOLD: list[int] = []


class Late(nn.Module):
    """Draws only once it was told to, which no flag of the module shows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 32)
        nn.init.zeros_(self.layer.weight)
        nn.init.ones_(self.layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        return F.dropout(x, 0.5) if TOLD else x


def check_draws_that_the_check_did_not_see() -> None:
    """Masks differ between rows, ranks and calls, follow the seed, and move the script's stream alike everywhere."""
    x = torch.randn(2 * world().size, 8)
    for sizes in patterns(len(x)):
        with case(sizes):
            model, sharded = Late(), samestep.shard(x, 0, sizes)
            TOLD.clear()
            torch.manual_seed(6)
            same(model(sharded), torch.ones(len(x), 32), "before")
            same(torch.rand(2), _after(6), "a region that draws nothing moved the script's stream")
            TOLD.append(1)
            masks = []
            for seed in (4, None, 4):
                if seed is not None:
                    torch.manual_seed(seed)
                masks.append(samestep.whole(model(sharded)).detach())
            same(masks[2], masks[0], "the same seed")
            rows = {tuple(row.tolist()) for row in (*masks[0], *masks[1])}
            true(len(rows) == 2 * len(x), f"only {len(rows)} different masks among {2 * len(x)} rows")
            everyone = world().all_gather_objects(torch.rand(2).tolist())
            true(all(one == everyone[0] for one in everyone), f"the ranks draw differently: {everyone}")


def _after(seed: int) -> torch.Tensor:
    return torch.rand(2, generator=torch.Generator().manual_seed(seed))


def check_unseen_draws_are_repeated_in_a_checkpoint() -> None:
    x = torch.randn(ROWS, 8)
    for reentrant in (False, True):
        for sizes in patterns(ROWS):
            with case((reentrant, sizes)):
                model, sharded = Late(), samestep.shard(x.clone().requires_grad_(), 0, sizes)
                TOLD.clear()
                model(sharded)
                TOLD.append(1)
                out = checkpoint(model, sharded, use_reentrant=reentrant)
                out.sum().backward()
                kept = samestep.whole(out.detach()) != 0
                same(model.layer.bias.grad, 2.0 * kept.sum(0), "gradient of the bias")


def check_streams_stay_alike_without_preserved_state() -> None:
    """A block that is computed again with other random numbers, as `preserve_rng_state=False` allows."""

    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.net, x, use_reentrant=False, preserve_rng_state=False)

    x = torch.randn(ROWS, 4)
    for sizes in patterns(ROWS):
        with case(sizes):
            Inside()(samestep.shard(x.clone().requires_grad_(), 0, sizes)).sum().backward()
            everyone = world().all_gather_objects(torch.rand(2).tolist())
            true(all(one == everyone[0] for one in everyone), f"the ranks draw differently: {everyone}")


def check_a_generator_of_the_modules_own() -> None:
    """It is alike on all ranks: its draws are for the whole batch, as on one device."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.generator = torch.Generator().manual_seed(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * torch.rand(x.shape, generator=self.generator)

    x = torch.randn(ROWS, 4)
    for sizes in patterns(ROWS):
        with case(sizes):
            torch.manual_seed(1)
            truth = Own()
            torch.manual_seed(1)
            ours = Own()
            for _ in range(3):
                same(ours(samestep.shard(x, 0, sizes)), truth(x), "noise")
            same(ours.generator.get_state(), truth.generator.get_state(), "the generator afterwards")


def check_python_draws_for_each_row() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                x = torch.stack([row * random.random() + float(np.random.rand()) for row in x])
            return self.layer(x)

    x = torch.randn(ROWS, 4)
    for sizes in patterns(ROWS):
        with case(sizes):
            model = Rows()
            _seed()
            rows = [row * random.random() + float(np.random.rand()) for row in x]
            truth, after = model.layer(torch.stack(rows)), _draws()
            _seed()
            same(model(samestep.shard(x, 0, sizes)), truth)
            same(_draws(), after, "the streams afterwards")


class Shared(nn.Module):
    """Draws for all rows at once, and for each."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        order, noise = torch.randperm(6), torch.randn(6)
        weight = F.dropout(self.layer.weight, 0.5)
        out = (x @ weight.t())[:, order] + noise
        return torch.cat([out, F.dropout(torch.ones_like(out), 0.5)], 1), noise


def check_what_is_drawn_for_all_rows_is_alike() -> None:
    """A mask of the weights (DropConnect), an order of the features, noise that is returned."""
    x = torch.ones(ROWS, 4)
    for sizes in patterns(ROWS):
        with case(sizes):
            model = Shared()
            torch.manual_seed(3)
            for _ in range(2):
                rows, noise = model(samestep.shard(x, 0, sizes))
                rows = samestep.whole(rows)
                same(rows[:, :6], rows[:1, :6].expand(ROWS, 6), "rows that are alike")
                everyone = world().all_gather_objects(noise.tolist())
                true(all(one == everyone[0] for one in everyone), f"the ranks drew other noise: {everyone}")
                true(len({tuple(row.tolist()) for row in rows[:, 6:]}) > 1, "rows are dropped alike")
            everyone = world().all_gather_objects(torch.rand(2).tolist())
            true(all(one == everyone[0] for one in everyone), f"the ranks draw differently: {everyone}")


def check_noise_on_gradients_inside() -> None:
    """A hook inside a module draws in backward, for more rows on one rank than on another."""

    class Hooked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.layer(x)
            if x.requires_grad:
                x.register_hook(lambda grad: grad + torch.randn_like(grad))
            return x

    x = torch.randn(ROWS, 4)
    for sizes in patterns(ROWS):
        with case(sizes):
            model, seen = Hooked(), []
            for _ in range(2):
                model(samestep.shard(x, 0, sizes)).sum().backward()
                seen.append(torch.rand(2).tolist())
            everyone = world().all_gather_objects(seen)
            true(all(one == everyone[0] for one in everyone), f"the ranks draw differently: {everyone}")
            true(seen[0] != seen[1], "the same again")
