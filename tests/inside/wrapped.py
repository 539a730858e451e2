"""Batches and models for what is wrapped in `nn.DataParallel`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import samestep
from inside.training import train

#: Rows of a batch: even, uneven, one for each of some ranks, a single one.
BATCHES = (12, 7, 2, 1)


def batch(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`rows` rows of 4 numbers, and their classes of 3."""
    torch.manual_seed(90 + rows)
    return torch.randn(rows, 4), torch.randint(0, 3, (rows,))


def given(tensor: torch.Tensor) -> list[torch.Tensor]:
    """A batch as a script may hold it: whole, and as a `DataLoader` gives it."""
    return [tensor.clone(), samestep.shard(tensor.clone())]


def fit(module: nn.Module, x: torch.Tensor, y: torch.Tensor, forward: Any = None, **kwargs: Any) -> list[float]:
    """A few steps of classifying what `forward` (else the module) gives for `x`; the losses."""
    call = forward or module
    return train(module, lambda: F.cross_entropy(call(x, **kwargs), y), lr=0.01)


class Normed(nn.Module):
    """Batch norm inside: several calls for several chunks would give other statistics than one device."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x: torch.Tensor, flag: bool = False) -> torch.Tensor:
        return self.layers(x) * (2.0 if flag else 1.0)
