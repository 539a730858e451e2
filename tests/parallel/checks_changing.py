"""Models that a script changes between steps: dtype, parts, weights; and parts that do not depend on the rows."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from inside.training import both, train


def check_dtype_changed_after_first_call() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        losses = train(model, lambda: F.cross_entropy(model(x), y), 2)
        model.double()
        losses += train(model, lambda: F.cross_entropy(model(x.double()), y), 2)
        model.float()
        return losses + train(model, lambda: F.cross_entropy(model(x), y), 2)

    both(step)


def check_parameters_added_later() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        losses = train(model, lambda: F.cross_entropy(model(x), y), 2)
        model.append(nn.Linear(3, 3))
        with torch.no_grad():
            for p in model[-1].parameters():
                p.copy_(torch.linspace(-1, 1, p.numel()).view_as(p))
        losses += train(model, lambda: F.cross_entropy(model(x), y), 2)
        del model[-1]
        return losses + train(model, lambda: F.cross_entropy(model(x), y), 2)

    both(step)


def check_weight_replaced() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        losses = train(model, lambda: F.cross_entropy(model(x), y), 2)
        for n in range(5):
            model[0].weight = nn.Parameter(torch.linspace(-1, 1, 32).view(8, 4) * (n + 1))
            losses += train(model, lambda: F.cross_entropy(model(x), y), 1)
        model[0].weight.data = torch.linspace(-1, 1, 32).view(8, 4)
        losses += train(model, lambda: F.cross_entropy(model(x), y), 1)
        return losses

    both(step)


def check_load_state_and_swap() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        state = copy.deepcopy(model.state_dict())
        losses = train(model, lambda: F.cross_entropy(model(x), y), 2)
        model.load_state_dict(state, assign=True)
        return losses + train(model, lambda: F.cross_entropy(model(x), y), 2)

    both(step)


def check_weight_norm_and_parametrization_added_later() -> None:

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        losses = train(model, lambda: F.cross_entropy(model(x), y), 2)
        parametrizations.weight_norm(model[0])
        losses += train(model, lambda: F.cross_entropy(model(x), y), 2)
        parametrize.remove_parametrizations(model[0], "weight")
        losses += train(model, lambda: F.cross_entropy(model(x), y), 2)
        prune.l1_unstructured(model[2], "weight", 0.4)
        losses += train(model, lambda: F.cross_entropy(model(x), y), 2)
        return losses

    both(step)


class Aux(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)
        self.reg: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        self.reg = self.a.weight.pow(2).sum() + self.b.weight.abs().mean()
        out: torch.Tensor = self.b(torch.tanh(h))
        return out


def check_penalty_kept_from_parameters() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        def loss() -> torch.Tensor:
            out = model(x)
            return F.cross_entropy(out, y) + 0.1 * model.reg

        return train(model, loss, 3)

    both(step, Aux)

    def only(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        model(x)
        model.reg.backward()

    both(only, Aux)


class Outs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)
        self.table = nn.Parameter(torch.randn(5, 3))

    def forward(self, x: torch.Tensor) -> Any:
        out = self.a(x)
        return out, F.normalize(self.table), self.table.sum(), out @ self.table.t()


def check_constant_outputs_get_gradients() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        def loss() -> torch.Tensor:
            out, t, s, z = model(x)
            return F.cross_entropy(out @ t.t(), y) + s * 0.1 + z.pow(2).mean()

        return train(model, loss, 3)

    both(step, Outs)
