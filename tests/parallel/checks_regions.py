"""Modules called with a sharded batch: outputs and gradients are those of the whole batch, whatever they do."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import samestep
from inside.claims import case, patterns, same_gradients, twins
from inside.training import ROWS, all_of, both, data, train


class Branches(nn.Module):
    """Two layers of which a call may use one, both or none."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)
        self.unused = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, which: str = "a") -> torch.Tensor:
        out = x[:, :3] * 1.0
        for name in which:
            out = out + getattr(self, name)(x)
        return out


def check_parameters_without_a_gradient() -> None:
    def unused(model: Branches, x: torch.Tensor, y: torch.Tensor) -> Any:
        return train(model, lambda: F.cross_entropy(model(x), y))

    def alternating(model: Branches, x: torch.Tensor, y: torch.Tensor) -> Any:
        ways = iter(["a", "b", "ab", "a"])
        return train(model, lambda: F.cross_entropy(model(x, next(ways)), y), 4)

    def zero_grad_to_zero(model: Branches, x: torch.Tensor, y: torch.Tensor) -> Any:
        for which in ("ab", "a"):
            model.zero_grad(set_to_none=False)
            F.cross_entropy(model(x, which), y).backward()

    all_of(unused, alternating, zero_grad_to_zero, make=Branches)


class RowBranch(nn.Module):
    """Branches on the sum of its rows: another branch on each rank, were it split and trusted."""

    def __init__(self) -> None:
        super().__init__()
        self.positive, self.negative = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.positive(x) if x.sum() > 0 else self.negative(x)


class Experts(nn.Module):
    """Each row goes to the expert that it chooses: on some ranks an expert has no row, and no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(4, 3) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_zeros(x.size(0), 3)
        choice = (x[:, 0] > 0).long() + (x[:, 0] > 1).long()
        for number, expert in enumerate(self.experts):
            chosen = choice == number
            if chosen.any():
                out[chosen] = expert(x[chosen])
        return out


def check_parameters_used_on_some_ranks_only() -> None:
    def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        return train(model, lambda: F.cross_entropy(model(x), y))

    both(step, Experts)


def check_a_branch_on_the_whole_batch() -> None:
    x, y = data()
    x = x.abs()
    x[-1] = -50.0
    truth = twins(RowBranch)[1]
    F.cross_entropy(truth(x), y).backward()
    for sizes in patterns(ROWS):
        with case(sizes):
            ours = twins(RowBranch)[0]
            F.cross_entropy(ours(samestep.shard(x, 0, sizes)), samestep.shard(y, 0, sizes)).backward()
            same_gradients(ours, truth)


def check_freezing_and_unfreezing() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        losses = []
        for phase in range(4):
            for p in model[0].parameters():
                p.requires_grad_(phase in (1, 3))
            for p in model[2].parameters():
                p.requires_grad_(phase != 3)
            trainable = [p for p in model.parameters() if p.requires_grad]
            optimizer = torch.optim.SGD(trainable, 0.1)
            model.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def everything_frozen(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        model.requires_grad_(False)
        x.requires_grad_()
        F.cross_entropy(model(x), y).backward()
        return x.grad

    for step_ in (step, everything_frozen):
        with case(step_.__name__):
            both(step_)


class Tied(nn.Module):
    """An autoencoder whose decoder is the transposed encoder, and a layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 3, bias=False)
        self.decoder = nn.Linear(3, 4, bias=False)
        self.decoder.weight = nn.Parameter(torch.zeros(4, 3))
        self.encoder.weight = nn.Parameter(torch.randn(3, 4))
        self.again = self.encoder

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(torch.tanh(self.encoder(x)), self.encoder.weight.t()) + self.again(x) @ self.decoder.weight.t()


def check_shared_parameters() -> None:
    def tied(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return train(model, lambda: F.mse_loss(model(x), x))

    with case("tied weights"):
        both(tied, Tied)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            shared = nn.Linear(4, 4)
            self.left = nn.Sequential(shared, nn.Linear(4, 3))
            self.right = nn.Sequential(shared, nn.Tanh(), nn.Linear(4, 3))

    def two_regions(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return train(model, lambda: F.cross_entropy(model.left(x), y) + F.mse_loss(model.right(x), model.left(x)))

    def one_after_the_other(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        F.cross_entropy(model.left(x), y).backward()
        (model.right(x) ** 2).mean().backward()

    def weight_outside(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        hidden = F.linear(x, model.left[0].weight)
        return train(model, lambda: F.cross_entropy(model.left(x), y) + (hidden.detach() ** 2).mean(), 2)

    def weight_in_the_loss(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return train(
            model, lambda: F.cross_entropy(model.left(x), y) + F.linear(x, model.left[0].weight).pow(2).mean(), 2
        )

    all_of(two_regions, one_after_the_other, weight_outside, weight_in_the_loss, make=Two)


def check_several_calls_before_one_backward() -> None:
    def three(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return train(model, lambda: sum(F.cross_entropy(model(x * k), y) for k in (1.0, 2.0, -1.0)))

    def whole_and_sharded(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        fixed = torch.linspace(-1, 1, 8).view(2, 4)
        return train(model, lambda: F.cross_entropy(model(x), y) + (model(fixed) ** 2).mean())

    def whole_only_in_between(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        fixed = torch.linspace(-1, 1, 8).view(2, 4)
        F.cross_entropy(model(x), y).backward()
        (model(fixed) ** 2).mean().backward()
        F.cross_entropy(model(x), y).backward()

    def recurrent(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        def loss() -> torch.Tensor:
            state = x
            for _ in range(3):
                state = torch.cat([model(state), x[:, :1]], 1)
            return (state**2).mean()

        return train(model, loss)

    def of_a_slice(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return train(model, lambda: F.cross_entropy(model(x[:5]), y[:5]) + F.cross_entropy(model(x[2:]), y[2:]))

    def of_a_mask(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        keep = x[:, 0] > 0
        return train(model, lambda: F.cross_entropy(model(x[keep]), y[keep]))

    def of_one_row(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return train(model, lambda: F.cross_entropy(model(x[3:4]), y[3:4]) + model(x[6]).sum() + model(x[0:0]).sum())

    def of_two_batches(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return train(model, lambda: F.cross_entropy(model(torch.cat([x, -x])), torch.cat([y, y])))

    steps = (three, whole_and_sharded, whole_only_in_between, recurrent, of_a_slice, of_a_mask, of_one_row)
    all_of(*steps, of_two_batches)
