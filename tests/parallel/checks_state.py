"""What modules keep from a call, and calls of one module in several ways."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import samestep
from inside.claims import case, patterns, same, same_weights, true, world
from inside.training import ROWS, all_of, both, train


class Kept(nn.Module):
    """Keeps tensors of a call in attributes, as models with auxiliary losses do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)
        self.aux_loss: Any = 0.0
        self.features: Any = None
        self.history: list[Any] = []
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.features = torch.tanh(self.first(x))
        self.aux_loss = (self.features**2).mean()
        self.history.append(self.features.detach())
        self.calls += 1
        return self.second(self.features)


def check_attributes_set_in_forward() -> None:
    def aux_loss(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        def loss() -> torch.Tensor:
            out = model(x)
            return F.cross_entropy(out, y) + model.aux_loss

        return [train(model, loss), model.calls]

    def features(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        F.cross_entropy(model(x), y).backward()
        return [model.features.detach(), list(model.features.shape), model.history, model.calls]

    all_of(aux_loss, features, make=Kept)


def check_forward_hooks_see_the_whole_batch() -> None:
    def collected(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        seen: list[Any] = []
        handle = model[1].register_forward_hook(lambda m, args, out: seen.append(out.detach()))
        F.cross_entropy(model(x), y).backward()
        handle.remove()
        F.cross_entropy(model(x), y).backward()
        return [[samestep.whole(s) for s in seen], len(seen)]

    def hooked_after_the_first_call(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        model(x)
        shapes: list[Any] = []
        model[0].register_forward_hook(
            lambda m, args, out: shapes.append([list(out.shape), float(out.mean().detach())])
        )
        model(x)
        return shapes

    def changed(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        model[1].register_forward_hook(lambda m, args, out: out - out.mean(0))
        return train(model, lambda: F.cross_entropy(model(x), y))

    def before(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        model[2].register_forward_pre_hook(lambda m, args: (args[0] / args[0].norm(),))
        return train(model, lambda: F.cross_entropy(model(x), y))

    def activation_penalty(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        kept: dict[str, torch.Tensor] = {}
        model[1].register_forward_hook(lambda m, args, out: kept.update(hidden=out))

        def loss() -> torch.Tensor:
            out = model(x)
            return F.cross_entropy(out, y) + 0.5 * kept["hidden"].pow(2).mean()

        return train(model, loss)

    def backward_hook(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        seen: list[Any] = []
        model[1].register_full_backward_hook(lambda m, grads_in, grads_out: seen.append(grads_out[0].detach()))
        F.cross_entropy(model(x), y).backward()
        return [samestep.whole(s) for s in seen]

    def grad_cam(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        kept: dict[str, Any] = {}

        def keep(module: nn.Module, args: Any, out: torch.Tensor) -> None:
            kept["hidden"] = out
            out.register_hook(lambda g: kept.update(slope=g))

        model[1].register_forward_hook(keep)
        model(x)[:, 1].sum().backward()
        return [samestep.whole(kept["hidden"]).detach(), samestep.whole(kept["slope"])]

    all_of(collected, hooked_after_the_first_call, changed, before, activation_penalty, backward_hook, grad_cam)


class Statistics(nn.Module):
    """Keeps a running mean of its inputs that no output of training shows (as VQ-VAE's code book does)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("rows", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
                self.rows += x.size(0)
            return self.layer(x)
        return self.layer(x - self.mean)


class Replaced(Statistics):
    """The same with assignments, and a plain attribute."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
            self.rows = self.rows + x.size(0)
            return self.layer(x)
        return self.layer(x - self.mean)


def check_buffers_that_only_evaluation_shows() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        losses = train(model, lambda: F.cross_entropy(model(x), y))
        model.eval()
        with torch.no_grad():
            return [losses, samestep.whole(model(x)), model.mean.clone(), model.rows.clone()]

    for kind in (Statistics, Replaced):
        with case(kind.__name__):
            both(step, kind)
            state = Statistics()
            state(samestep.shard(torch.randn(ROWS, 4)))
            everyone = world().all_gather_objects([state.mean.tolist(), int(state.rows)])
            true(all(one == everyone[0] for one in everyone), "the ranks' buffers differ")


class Modes(nn.Module):
    """Couples its rows only if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.centre = False

    def forward(self, x: torch.Tensor, how: str = "rows", times: int = 1) -> Any:
        out = self.layer(x)
        if how == "centred" or self.centre:
            return out - out.mean(0)
        if how == "turned":
            return out.t()
        if how == "loss":
            return (out**2).mean()
        if how == "several":
            return [out * k for k in range(1, times + 1)]
        return out


def check_other_ways_of_calling_after_the_first() -> None:
    def argument(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return [model(x), model(x, "centred"), model(x), model(x, how="turned"), model(x, "loss"), model(x)]

    def several(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return [model(x), model(x, "several", 2), model(x, "several", 3), model(x, how="several", times=1)]

    def attribute(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        first = model(x)
        model.centre = True
        second = model(x)
        model.centre = False
        return [first, second, model(x)]

    def replaced_forward(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        first = model(x)
        model.forward = lambda v: model.layer(v) - v.mean()
        return [first, model(x)]

    def replaced_child(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        first = model(x)
        model.layer = nn.Sequential(model.layer, Centred())
        return [first, model(x)]

    def shapes(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        deep = x.unsqueeze(1)
        return [model(x), model(deep), model(deep.transpose(0, 1)), model(x[:3]), model(x.double().float())]

    all_of(argument, several, attribute, replaced_forward, replaced_child, shapes, make=Modes)


class Centred(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


class Scheduled(nn.Module):
    """Changes what it does with the number of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        out = self.layer(x) * math.exp(-0.1 * self.step)
        return out - out.mean(0) if self.step > 2 else out


def check_a_module_that_changes_with_its_calls() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return [train(model, lambda: F.cross_entropy(model(x), y), 4), model.step]

    both(step, Scheduled)


def check_other_methods_than_forward() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(4, 5), nn.Linear(5, 4)

        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.inner(x))

        def decode(self, z: torch.Tensor) -> torch.Tensor:
            return F.linear(z, self.outer.weight, self.outer.bias)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.decode(self.encode(x))

    def methods(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        def loss() -> torch.Tensor:
            code = model.encode(x)
            return F.mse_loss(model.decode(code), x) + 0.1 * code.pow(2).sum(1).mean() + F.mse_loss(model(x), x)

        return train(model, loss)

    def forward_itself(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return train(model, lambda: F.mse_loss(model.forward(x), x))

    all_of(methods, forward_itself, make=Encoder)


def check_lazy_and_initialised_at_first_use() -> None:
    class Initialised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.register_buffer("ready", torch.tensor(False))
            self.register_buffer("scale", torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.ready:
                self.scale.copy_(x.detach().std(0))
                self.ready.fill_(True)
            return self.layer(x / self.scale)

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return train(model, lambda: F.cross_entropy(model(x), y))

    with case("data-dependent"):
        both(step, Initialised)
    for sizes in patterns(ROWS):
        with case(("lazy", sizes)):
            x = torch.linspace(-1, 1, ROWS * 4).view(ROWS, 4)
            torch.manual_seed(3)
            ours = nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(2))
            same(list(ours(samestep.shard(x, 0, sizes)).shape), [ROWS, 2], "shape")
            truth = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
            truth.load_state_dict(ours.state_dict())
            for model, batch in ((ours, samestep.shard(x, 0, sizes)), (truth, x)):
                train(model, lambda m=model, b=batch: (m(b) ** 2).mean())
            same_weights(ours, truth)
