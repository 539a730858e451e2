"""One step of a script, run on a batch sharded in every way and on the same batch whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import samestep
from inside.claims import case, patterns, same, same_gradients, same_weights, twins

ROWS = 7

Step = Callable[[Any, torch.Tensor, torch.Tensor], Any]


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of 7 rows of 4 numbers, and their classes of 3."""
    torch.manual_seed(51)
    return torch.randn(ROWS, 4), torch.randint(0, 3, (ROWS,))


def net() -> nn.Module:
    """A small classifier for `data`."""
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def both(step: Step, make: Callable[[], Any] = net, *, scale: float = 1.0) -> None:
    """What `step(model, x, y)` returns, the gradients and the weights are those of whole tensors."""
    x, y = data()
    truth = twins(make)[1]
    expected = step(truth, x.clone(), y)
    for sizes in patterns(ROWS):
        with case(sizes):
            ours = twins(make)[0]
            got = step(ours, samestep.shard(x.clone(), 0, sizes), samestep.shard(y, 0, sizes))
            same(got, expected, "returned", scale=scale)
            same_gradients(ours, truth, scale=scale)
            same_weights(ours, truth, scale=scale)


def all_of(*steps: Step, make: Callable[[], Any] = net, scale: float = 1.0) -> None:
    """`both` for several steps, told apart by their names."""
    for step in steps:
        with case(step.__name__):
            both(step, make, scale=scale)


def train(model: nn.Module, loss: Callable[[], Any], steps: int = 3, lr: float = 0.1) -> list[float]:
    """A few optimizer steps; the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses
