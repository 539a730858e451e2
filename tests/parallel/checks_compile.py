"""`torch.compile` in every place: the numbers of the uncompiled module on the whole batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import samestep
from inside.claims import case, patterns, same, same_weights, true, twins
from inside.training import ROWS, data, net, train

#: Without a C++ compiler; the default backend has a test of its own, since it takes long.
BACKENDS = ("eager", "aot_eager")


class Small(nn.Module):
    """Branches on its mode, a flag and the number of rows of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, flag: bool = False) -> torch.Tensor:
        hidden = F.relu(self.first(x)) if self.training else self.first(x)
        if flag:
            hidden = hidden * 2 + hidden.size(1)
        return self.last(hidden)


class Coupled(nn.Module):
    """Couples the rows, and is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.net(x)
        return out - out.mean(0)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Decorated(Normed):
    """A compiled method after a part that is left out of what is compiled around it."""

    @torch.compile(backend="eager")
    def scaled(self, hidden: torch.Tensor, factor: float) -> torch.Tensor:
        return hidden * factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[3](self.scaled(self.layers[1](self.layers[0](x)), 2.0))


def in_place(model: Any, **options: Any) -> Any:
    model.compile(**options)
    return model


def first_layer(model: Any, **options: Any) -> Any:
    name = next(iter(dict(model.named_children())))
    setattr(model, name, torch.compile(getattr(model, name), **options))
    return model


WAYS: dict[str, Callable[..., Any]] = {
    "compile(model)": torch.compile,
    "model.compile()": in_place,
    "a part": first_layer,
    "DataParallel(compile(model))": lambda m, **o: nn.DataParallel(torch.compile(m, **o), [0, 1]),
    "compile(DataParallel(model))": lambda m, **o: torch.compile(nn.DataParallel(m, [0, 1]), **o),
    "DataParallel(model).compile()": lambda m, **o: in_place(nn.DataParallel(m), **o),
    "decorator": lambda m, **o: torch.compile(**o)(m),
}


def fit(call: Any, model: nn.Module, batches: list[Any]) -> Any:
    """Training on batches of several sizes, then evaluation: losses and outputs."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses = []
    model.train()
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(call(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        return [losses, call(batches[0][0]), call(batches[-1][0])]


def compare(way: str, make: Callable[[], Any], *, scale: float = 1.0, **options: Any) -> None:
    x, y = data()
    x, y = torch.cat([x, -x]), torch.cat([y, y])
    bounds = ((0, 14), (0, 7), (3, 9), (4, 5))
    truth = twins(make)[1]
    expected = fit(truth, truth, [(x[a:b], y[a:b]) for a, b in bounds])
    torch._dynamo.reset()
    ours = twins(make)[0]
    batches = [(samestep.shard(x[a:b].clone()), samestep.shard(y[a:b])) for a, b in bounds]
    batches[1] = (x[0:7], y[0:7])
    same(fit(WAYS[way](ours, **options), ours, batches), expected, "losses and outputs", scale=scale)
    same(list(ours.parameters()), list(truth.parameters()), "weights", scale=scale)
    same(list(ours.buffers()), list(truth.buffers()), "buffers", scale=scale)


def check_compiled_models() -> None:
    for way in ("compile(model)", "model.compile()", "a part"):
        with case(way):
            compare(way, Small, backend="eager")


def check_compiled_models_in_data_parallel() -> None:
    for way in WAYS:
        if "DataParallel" in way:
            with case(way):
                compare(way, Small, backend="eager")


def check_compiled_models_with_their_gradients() -> None:
    with case("decorator, the whole graph"):
        compare("decorator", Small, backend="aot_eager", fullgraph=True)
    with case("static shapes"):
        compare("compile(model)", Small, backend="aot_eager", dynamic=False)


def check_compiled_code_is_run() -> None:
    """What is compiled is the region's inside: the compiler is asked for it."""
    seen: list[Any] = []

    def backend(graph: Any, examples: Any) -> Any:
        seen.append([tuple(e.shape) for e in examples if isinstance(e, torch.Tensor)])
        return graph.forward

    x, _ = data()
    for way in WAYS:
        with case(way):
            torch._dynamo.reset()
            seen.clear()
            model = WAYS[way](twins(Small)[0], backend=backend, dynamic=False)
            model(samestep.shard(x))
            model(samestep.shard(x))
            rows = {shape[0] for shapes in seen for shape in shapes if shape[-1:] == (4,) and shape != (6, 4)}
            mine = samestep.shard(x)._placement.rows  # type: ignore[attr-defined]
            true(rows == {mine}, f"rows compiled for: {rows}, of this rank: {mine}")


def check_a_compiled_method_inside() -> None:
    x, y = data()
    ours, truth = twins(Decorated)
    expected = fit(truth, truth, [(x, y)] * 3)
    torch._dynamo.reset()
    batches = [(samestep.shard(x), samestep.shard(y))] * 3
    same(fit(torch.compile(ours, backend="eager"), ours, batches), expected, "losses and outputs")


def check_models_that_are_opened() -> None:
    for way in ("compile(model)", "DataParallel(model).compile()"):
        with case(way):
            compare(way, Coupled, backend="aot_eager")


def check_batch_norm() -> None:
    x, y = data()
    truth = twins(Normed)[1]
    expected = fit(truth, truth, [(x, y)] * 3)
    for sizes in patterns(ROWS)[::3]:
        with case(sizes):
            torch._dynamo.reset()
            ours = twins(Normed)[0]
            batches = [(samestep.shard(x, 0, sizes), samestep.shard(y, 0, sizes))] * 3
            call = torch.compile(ours, backend="aot_eager", fullgraph=True)
            same(fit(call, ours, batches), expected, "losses and outputs", scale=10)
            same_weights(ours, truth, scale=10)


def check_hooks_inside() -> None:
    x, _ = data()
    seen: list[tuple[int, ...]] = []

    def look(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(output.shape))
        return output * 2

    for way in ("compile(model)", "model.compile()"):
        with case(("hook", way)):
            torch._dynamo.reset()
            ours, truth = twins(Small)
            for model in (ours, truth):
                model.first.register_forward_hook(look)
            seen.clear()
            same(WAYS[way](ours, backend="eager")(samestep.shard(x)), truth(x), "output")
            true(set(seen) == {(ROWS, 6)}, f"shapes that the hook saw: {set(seen)}")


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


class Odd(nn.Module):
    """Things that the compiler has rules of its own for, and Samestep has replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = Doubled.apply(torch.tanh(self.first(x)))
        hidden = hidden + torch.utils.checkpoint.checkpoint(torch.sin, hidden, use_reentrant=False)
        scale = self.last.weight.data.abs().max()
        with torch.no_grad():
            shift = hidden.detach().mean(1, keepdim=True)
        return self.last(hidden - shift) * scale


def check_what_samestep_replaced() -> None:
    compare("compile(model)", Odd, backend="aot_eager", dynamic=False)


def check_what_samestep_replaced_in_place() -> None:
    compare("model.compile()", Odd, backend="eager", dynamic=False)


# ---------------------------------------------------------------------- functions
def check_compiled_functions_outside() -> None:
    x, y = data()

    def loss_of(out: torch.Tensor, goal: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        return weight * F.cross_entropy(out, goal) + (out**2).mean()

    def pairwise(out: torch.Tensor) -> torch.Tensor:
        return ((out @ out.t()) ** 2).mean()

    for backend in BACKENDS:
        for name, function in (("loss", loss_of), ("pairwise", lambda out, goal: pairwise(out))):
            truth = twins(Small)[1]
            expected = train(truth, lambda m=truth, f=function: f(m(x), y))
            for sizes in patterns(ROWS)[::3]:
                with case((backend, name, sizes)):
                    torch._dynamo.reset()
                    ours = twins(Small)[0]
                    xs, ys = samestep.shard(x.clone(), 0, sizes), samestep.shard(y, 0, sizes)
                    compiled = torch.compile(function, backend=backend)
                    same(train(ours, lambda m=ours, f=compiled, xs=xs, ys=ys: f(m(xs), ys)), expected, "losses")
                    same_weights(ours, truth)
                    same(compiled(torch.ones(3, 3), torch.tensor([0, 1, 2])), function(*_whole_example()), "whole")


def _whole_example() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(3, 3), torch.tensor([0, 1, 2])


def check_a_compiled_function_that_holds_a_batch() -> None:
    """A global tensor that is no argument: a variable of the script, and an attribute."""
    x, _ = data()
    held = samestep.shard(x)

    class Holder:
        batch = held

    def from_closure(scale: float) -> torch.Tensor:
        return (held * scale).sum(1) + held.mean()

    def from_attribute(scale: float) -> torch.Tensor:
        return Holder.batch.softmax(1) * scale

    for backend in BACKENDS:
        with case(backend):
            torch._dynamo.reset()
            for _ in range(2):
                same(torch.compile(from_closure, backend=backend)(2.0), (x * 2).sum(1) + x.mean(), "closure")
                same(torch.compile(from_attribute, backend=backend)(2.0), x.softmax(1) * 2, "attribute")


def check_a_compiled_training_step() -> None:
    x, y = data()
    truth = twins(Small)[1]
    expected = train(truth, lambda: F.cross_entropy(truth(x), y))
    for backend, both in (("eager", (True, False)), ("aot_eager", (False,))):
        for sharded in both:
            with case((backend, sharded)):
                torch._dynamo.reset()
                ours = twins(Small)[0]
                optimizer = torch.optim.SGD(ours.parameters(), 0.1, momentum=0.9)

                @torch.compile(backend=backend)
                def step(x: torch.Tensor, y: torch.Tensor, model: Any = ours, optimizer: Any = optimizer) -> Any:
                    optimizer.zero_grad()
                    loss = F.cross_entropy(model(x), y)
                    loss.backward()
                    optimizer.step()
                    return loss

                batch = (samestep.shard(x), samestep.shard(y)) if sharded else (x, y)
                same([step(*batch).item() for _ in range(3)], expected, "losses")
                same_weights(ours, truth)


def check_a_compiled_optimizer() -> None:
    x, y = data()
    kinds: dict[str, Any] = {
        "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        "Adam": lambda p: torch.optim.Adam(p, 0.01),
    }
    for (name, kind), backend in zip(kinds.items(), BACKENDS, strict=True):
        with case((name, backend)):
            torch._dynamo.reset()
            ours, truth = twins(Small)
            for model, inputs in ((ours, samestep.shard(x)), (truth, x)):
                optimizer = kind(model.parameters())
                step = torch.compile(optimizer.step, backend=backend) if model is ours else optimizer.step
                for _ in range(3):
                    optimizer.zero_grad()
                    F.cross_entropy(model(inputs), y).backward()
                    step()
            same_weights(ours, truth)


def check_compiled_models_as_objects() -> None:
    x, _ = data()
    ours, truth = twins(Small)
    model = torch.compile(ours, backend="eager")
    same(list(model.state_dict()), [f"_orig_mod.{key}" for key in truth.state_dict()], "keys")
    wrapped = torch.compile(nn.DataParallel(ours, [0, 1]), backend="eager")
    same(list(wrapped.state_dict()), [f"_orig_mod.module.{key}" for key in truth.state_dict()], "keys, wrapped")
    true(isinstance(model, torch._dynamo.OptimizedModule), "class")
    for other in (model, wrapped, copy.deepcopy(model)):
        same(other(samestep.shard(x)), truth(x), "output")
        same(other(x), truth(x), "output of the whole batch")
