"""`--batchnorm local`: every rank normalises by its own rows; what the script sees of it is whole all the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import samestep
from inside.claims import case, patterns, same, same_gradients, same_weights, true, twins, world
from samestep.ledger import LEDGER
from samestep.numerics import Numerics, choose

choose(Numerics(batchnorm="local"))  # the checks of a file have ranks of their own

ROWS = 12


class Net(nn.Module):
    def __init__(self, norm: Any = nn.BatchNorm1d) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 6), norm(6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


def _data() -> torch.Tensor:
    torch.manual_seed(8)
    return torch.randn(ROWS, 3) * 2 + 1


def _sizes() -> list[tuple[int, ...]]:
    """Evenly, and unevenly with no rank below two rows."""
    size = world().size
    return [world().split(ROWS), (2,) * (size - 1) + (ROWS - 2 * (size - 1),)]


def _by_blocks(model: Any, x: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    """What the ranks compute, by one process: each block normalised by itself, the running statistics by all."""
    norm, hidden = model.norm, model.first(x)
    blocks = [
        nn.functional.batch_norm(block, None, None, norm.weight, norm.bias, True, 0.0, norm.eps)
        for block in hidden.split(list(sizes))
    ]
    if norm.running_mean is not None:
        norm(hidden.detach())
    return model.last(torch.relu(torch.cat(blocks)))


def check_rows_of_a_rank_and_statistics_of_all() -> None:
    x = _data()
    for norm in (nn.BatchNorm1d, lambda c: nn.BatchNorm1d(c, momentum=None), nn.SyncBatchNorm):
        for sizes in _sizes():
            with case(sizes):
                ours, truth = twins(lambda norm=norm: Net(norm))
                for _ in range(3):
                    got, expected = ours(samestep.shard(x, 0, sizes)), _by_blocks(truth, x, sizes)
                    same(got, expected, scale=10)
                    got.pow(2).mean().backward()
                    expected.pow(2).mean().backward()
                same_gradients(ours, truth, scale=10)
                same_weights(ours, truth, "running statistics", scale=10)
                ours.eval(), truth.eval()
                same(ours(samestep.shard(x, 0, sizes)), truth(x), "evaluation", scale=10)
    true(all(plan == "split" for plan in LEDGER.regions.values()), f"not split: {LEDGER.regions}")


def check_half_precision() -> None:
    x = _data().bfloat16()
    for sizes in _sizes():
        with case(sizes):
            ours, truth = twins(lambda: Net().bfloat16())
            same(ours(samestep.shard(x, 0, sizes)), _by_blocks(truth, x, sizes), scale=3)
            same_weights(ours, truth, "running statistics", scale=3)


def check_a_rank_with_a_single_row_uses_the_whole_batch() -> None:
    x = _data()
    for sizes in patterns(ROWS)[1:]:
        if 1 in sizes:
            with case(sizes):
                ours, truth = twins(Net)
                same(ours(samestep.shard(x, 0, sizes)), truth(x), scale=10)
                same_weights(ours, truth, "running statistics", scale=10)


def check_activations_computed_again() -> None:
    class Again(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(super().forward, x, use_reentrant=False)

    x = _data()
    for sizes in _sizes():
        with case(sizes):
            ours, truth = twins(Again)
            ours(samestep.shard(x, 0, sizes)).pow(2).mean().backward()
            _by_blocks(truth, x, sizes).pow(2).mean().backward()
            truth.norm(truth.first(x))  # the running statistics move once more
            same_gradients(ours, truth, scale=10)
            same_weights(ours, truth, "running statistics", scale=10)


def check_ranks_stay_alike() -> None:
    ours = Net()
    optimizer = torch.optim.SGD(ours.parameters(), 0.1)
    for _ in range(3):
        for sizes in _sizes():
            optimizer.zero_grad()
            ours(samestep.shard(torch.randn(ROWS, 3), 0, sizes)).pow(2).mean().backward()
            optimizer.step()
    everyone = world().all_gather_objects([t.tolist() for t in ours.state_dict().values()])
    true(all(one == everyone[0] for one in everyone), "the ranks differ")
