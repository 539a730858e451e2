"""Modules that draw random numbers in every way that modules do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributions as D
import torch.nn.functional as F
from torch import nn

Draw = Callable[[Any, torch.Tensor], torch.Tensor]


class Noisy(nn.Module):
    """Draws in some way, between two layers."""

    def __init__(self, draw: Draw, inner: Callable[[], nn.Module] = nn.Identity, width: int = 4) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(3, width), inner(), nn.Linear(width, 2)
        self.draw = draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.draw(self, self.first(x)))


WAYS: dict[str, Draw] = {
    "dropout": lambda m, x: F.dropout(x, 0.5),
    "dropout that seldom drops": lambda m, x: F.dropout(x, 0.02),
    "dropout, all and none": lambda m, x: F.dropout(x, 1.0) + F.dropout(x, 0.0),
    "in place": lambda m, x: F.dropout(x * 1, 0.3, inplace=True),
    "alpha_dropout": lambda m, x: F.alpha_dropout(x, 0.4, training=True),
    "native_dropout": lambda m, x: torch.native_dropout(x, 0.4, True)[0],
    "randn_like": lambda m, x: x + torch.randn_like(x),
    "rand_like": lambda m, x: x * torch.rand_like(x),
    "randint_like": lambda m, x: x * torch.randint_like(x, 5),
    "randn of the shape": lambda m, x: x + torch.randn(x.shape) * torch.randn(x.size(0), 1),
    "rand of the batch length": lambda m, x: x * torch.rand(x.size(0))[:, None],
    "randint of the batch length": lambda m, x: x * torch.randint(2, 9, (x.size(0), 1)),
    "one number for all": lambda m, x: x * torch.rand(1) + torch.randn(4),
    "bernoulli": lambda m, x: x * torch.bernoulli(torch.sigmoid(x)),
    "bernoulli p": lambda m, x: x * torch.ones_like(x).bernoulli(0.3),
    "bernoulli_ of tensor": lambda m, x: x * torch.empty_like(x).bernoulli_(torch.sigmoid(x).detach()),
    "normal_ and uniform_": lambda m, x: (
        x + x.new_empty(x.shape).normal_(1, 2) + x.new_empty(len(x), 1).uniform_(-1, 3)
    ),
    "exponential_": lambda m, x: x + torch.empty_like(x).exponential_(),
    "others in place": lambda m, x: (
        x
        + torch.empty_like(x).log_normal_().clamp(max=3)
        + torch.empty_like(x).cauchy_().clamp(-1, 1)
        + torch.empty_like(x).geometric_(0.3)
        + torch.empty_like(x).random_(0, 4)
    ),
    "normal of tensors": lambda m, x: torch.normal(x.detach(), 0.5) + torch.normal(x.detach(), x.detach().abs()) + x,
    "poisson": lambda m, x: x + torch.poisson(x.detach().abs() * 3),
    "rrelu": lambda m, x: F.rrelu(x, training=True),
    "gumbel": lambda m, x: F.gumbel_softmax(x, hard=True) + F.gumbel_softmax(x, tau=0.5),
    "multinomial": lambda m, x: x + torch.multinomial(x.detach().softmax(1), 2).sum(1, keepdim=True),
    "multinomial with replacement": lambda m, x: x + torch.multinomial(x.softmax(1), 6, True).sum(1, keepdim=True),
    "gamma": lambda m, x: x + torch._standard_gamma(x.detach().abs() + 0.5),
    "binomial": lambda m, x: x + torch.binomial(torch.full_like(x, 9.0), torch.sigmoid(x.detach())),
    "dirichlet": lambda m, x: x + D.Dirichlet(x.detach().abs() + 0.5, validate_args=False).sample(),
    "reparametrised": lambda m, x: D.Normal(x, x.abs() + 0.1, validate_args=False).rsample(),
    "categorical": lambda m, x: x + D.Categorical(logits=x, validate_args=False).sample()[:, None],
    "permuted features": lambda m, x: x[:, torch.randperm(x.size(1))],
    "transposed": lambda m, x: x + torch.randn_like(x.t()).t() + torch.empty_like(x.t()).uniform_().t(),
    "every second": lambda m, x: x + _every_second(x),
    "of the transposed shape": lambda m, x: x + torch.rand(x.size(1), x.size(0)).t(),
    "a mask over rows and features": lambda m, x: x * (torch.rand(x.size(0) * x.size(1)).view_as(x) > 0.3),
    "stochastic depth": lambda m, x: (
        x + x.tanh() * x.new_empty([x.size(0)] + [1] * (x.dim() - 1)).bernoulli_(0.6) / 0.6
    ),
    "double": lambda m, x: (x.double() + torch.randn(x.shape, dtype=torch.float64)).float(),
    "seeded inside": lambda m, x: _seeded(x),
}


def _every_second(x: torch.Tensor) -> torch.Tensor:
    wide = x.new_zeros(x.size(0), 2 * x.size(1))
    wide[:, ::2].normal_()
    return wide[:, ::2]


def _seeded(x: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return x + torch.randn_like(x)
