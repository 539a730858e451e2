"""Traced and scripted modules: their parameters are in C++, and what they do cannot be looked into."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from inside.claims import case, same, shards

ROWS = 7


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def _step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return loss.detach()


def check_scripted_and_traced_modules() -> None:
    x = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(1))
    y = torch.tensor([0, 1, 1, 0, 1, 0, 0])
    kinds = {
        "scripted, training": lambda: torch.jit.script(_model()),
        "scripted, evaluation": lambda: torch.jit.script(_model().eval()),
        "traced": lambda: torch.jit.trace(_model().eval(), torch.randn(2, 3)),
        "part of another": lambda: nn.Sequential(nn.Linear(3, 3), torch.jit.script(_model())),
    }
    for name, make in kinds.items():
        torch.manual_seed(3)
        plain: Any = make()
        start = copy.deepcopy(plain.state_dict())
        expected = _step(plain, x, y)
        for sizes, batch in shards(x):
            with case((name, sizes)):
                ours: Any = make()
                ours.load_state_dict(start)
                same(_step(ours, batch, y), expected, "loss")
                for key, value in plain.state_dict().items():
                    same(ours.state_dict()[key], value, key)
                for mine, true_one in zip(ours.parameters(), plain.parameters(), strict=True):
                    same(mine.grad, true_one.grad, "gradient")
