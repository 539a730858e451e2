"""The autograd surface: gradients of, and to, global tensors are the global ones, of every order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import samestep
from inside.claims import case, patterns, raises, same, same_gradients, true, twins

ROWS = 7


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(51)
    return torch.randn(ROWS, 4), torch.randint(0, 3, (ROWS,))


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def _both(step: Callable[[nn.Module, torch.Tensor, torch.Tensor], Any], *, scale: float = 1.0) -> None:
    """`step(model, x, y)` on shards in every way and on whole tensors: what it returns and the gradients agree."""
    x, y = _data()
    truth = twins(_net)[1]
    expected = step(truth, x.clone(), y)
    for sizes in patterns(ROWS):
        with case(sizes):
            ours = twins(_net)[0]
            got = step(ours, samestep.shard(x.clone(), 0, sizes), samestep.shard(y, 0, sizes))
            same(got, expected, scale=scale)
            same_gradients(ours, truth, scale=scale)


def check_backward_with_a_given_gradient() -> None:
    def whole_gradient(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        model(x).backward(torch.linspace(0, 1, ROWS * 3).view(ROWS, 3))

    def sharded_gradient(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        out = model(x)
        out.backward(gradient=(out * 2).detach())

    def like(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        out = model(x)
        out.backward(torch.ones_like(out))

    def per_sample(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        losses = F.cross_entropy(model(x), y, reduction="none")
        losses.backward(torch.ones(ROWS) / 3)

    def scalar(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        F.cross_entropy(model(x), y).backward(torch.tensor(2.5))

    def scalar_of_its_own(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        loss = F.cross_entropy(model(x), y)
        loss.backward(loss.detach() * 2)

    def several(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        out = model(x)
        penalty = sum((p**2).sum() for p in model.parameters())
        torch.autograd.backward([F.cross_entropy(out, y), penalty, out], [None, None, torch.ones(ROWS, 3)])

    def vector_sum(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        model(x).mean(0).backward(torch.tensor([1.0, 2.0, 3.0]))

    def one_element(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        model(x)[2, 1].backward()

    def row(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        model(x)[ROWS - 1].sum().backward()

    for step in (whole_gradient, sharded_gradient, like, per_sample, scalar, scalar_of_its_own, several, vector_sum):
        with case(step.__name__):
            _both(step)
    for step in (one_element, row):
        with case(step.__name__):
            _both(step)


def check_backward_twice() -> None:
    def retained(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        loss = F.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        loss.backward()

    def two_losses(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        out = model(x)
        F.cross_entropy(out, y).backward(retain_graph=True)
        (out**2).mean().backward()

    def released(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        raises(RuntimeError, loss.backward, "a second backward through a graph that was released")

    for step in (retained, two_losses, released):
        with case(step.__name__):
            _both(step)


def check_what_cannot_be_differentiated_raises() -> None:
    def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        raises(RuntimeError, lambda: model(x).backward(), "backward of many without a gradient")
        raises(RuntimeError, lambda: model(x).detach().sum().backward(), "backward of a detached loss")
        raises(RuntimeError, lambda: (x * 2).sum().backward(), "backward of data")
        with torch.no_grad():
            loss = F.cross_entropy(model(x), y)
        raises(RuntimeError, loss.backward, "backward of a loss made under no_grad")
        raises(RuntimeError, lambda: y.requires_grad_(), "integers that require a gradient")

    _both(step)


def check_gradients_of_inputs() -> None:
    def leaf(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        x.requires_grad_()
        F.cross_entropy(model(x), y).backward()
        first = x.grad.clone()
        F.cross_entropy(model(x), y).backward()
        true(x.is_leaf and x.requires_grad, "a leaf")
        second = x.grad.clone()
        x.grad.zero_()
        third = x.grad.clone()
        x.grad = None
        true(x.grad is None, "grad set to None")
        F.cross_entropy(model(x), y).backward()
        x.grad.data.mul_(2)
        return [first, second, third, x.grad, x.grad.sign(), x.grad.norm(), x.grad.view(ROWS, -1).norm(dim=1)]

    def attribute(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        x.requires_grad = True
        (model(x) ** 2).sum().backward()
        x.requires_grad = False
        return [x.grad, x.requires_grad, (x + 1).requires_grad]

    def fgsm(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        delta = torch.zeros_like(x, requires_grad=True)
        for _ in range(3):
            F.cross_entropy(model(x + delta), y).backward()
            delta.data = (delta + 0.1 * delta.grad.detach().sign()).clamp(-0.15, 0.15)
            delta.grad.zero_()
        return delta.detach()

    def whole_delta(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        delta = torch.zeros(4, requires_grad=True)
        F.cross_entropy(model(x + delta), y).backward()
        return delta.grad

    def full_delta(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        delta = torch.zeros(ROWS, 4, requires_grad=True)
        F.cross_entropy(model(x + delta), y).backward()
        return delta.grad

    def retained(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        x.requires_grad_()
        hidden = x * 2
        hidden.retain_grad()
        out = model(hidden)
        out.retain_grad()
        loss = F.cross_entropy(out, y)
        loss.retain_grad()
        (loss * 3).backward()
        return [hidden.grad, out.grad, loss.grad, x.grad]

    def detached(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        out = model(x)
        (out * out.detach()).sum().backward()
        return [out.requires_grad, out.detach().requires_grad, out.data.requires_grad, out.is_leaf]

    def detach_in_place(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        out = model(x) * 2
        out.detach_()
        return [out.requires_grad, out.is_leaf, out]

    for step in (leaf, attribute, fgsm, whole_delta, full_delta, retained, detached, detach_in_place):
        with case(step.__name__):
            _both(step)


def check_autograd_grad() -> None:
    def to_input(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        x.requires_grad_()
        return torch.autograd.grad(F.cross_entropy(model(x), y), x)

    def to_intermediate(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        out = model(x)
        hidden = out * 2
        return list(torch.autograd.grad(F.cross_entropy(hidden, y), [out, hidden]))

    def to_parameters(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        return list(torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters())))

    def to_parameters_with_penalty(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        penalty = sum((p**2).sum() for p in model.parameters())
        return list(torch.autograd.grad(F.cross_entropy(model(x), y) + penalty, list(model.parameters())))

    def to_one_parameter(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.autograd.grad(outputs=(model(x) ** 2).sum(), inputs=model[0].weight)[0]

    def with_grad_outputs(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        x.requires_grad_()
        out = model(x)
        return torch.autograd.grad(outputs=out, inputs=x, grad_outputs=torch.ones(out.size()), retain_graph=True)[0]

    def to_whole(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        scale = torch.ones(4, requires_grad=True)
        return torch.autograd.grad(F.cross_entropy(model(x * scale), y), scale)

    def unused(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        other = torch.ones(1, requires_grad=True)
        loss = F.cross_entropy(model(x), y)
        raises(RuntimeError, lambda: torch.autograd.grad(loss, other, retain_graph=True), "unused without allow_unused")
        return list(torch.autograd.grad(loss, [model[0].bias, other], allow_unused=True))

    def materialized(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        other = torch.ones(1, requires_grad=True)
        loss = F.cross_entropy(model(x), y)
        return list(torch.autograd.grad(loss, [model[0].bias, other], materialize_grads=True))

    def inputs_only(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        F.cross_entropy(model(x), y).backward(inputs=[model[0].weight])

    steps = [to_input, to_intermediate, to_parameters, to_parameters_with_penalty, to_one_parameter, with_grad_outputs]
    for step in (*steps, to_whole, unused, materialized, inputs_only):
        with case(step.__name__):
            _both(step)


def check_gradients_of_gradients() -> None:
    def input_penalty(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        x.requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        penalty = ((slope.norm(2, dim=1) - 1) ** 2).mean()
        (F.cross_entropy(out, y) + 10 * penalty).backward()
        return [penalty.detach(), slope.detach()]

    def wgan(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        real = torch.linspace(-1, 1, ROWS * 4).view(ROWS, 4)
        share = torch.linspace(0, 1, ROWS).view(ROWS, 1)
        mixed = (share * x.detach() + (1 - share) * real).requires_grad_(True)
        out = model(mixed)
        ones = torch.ones(out.size())
        slopes = torch.autograd.grad(out, mixed, ones, create_graph=True, retain_graph=True, only_inputs=True)[0]
        slopes = slopes.view(slopes.size(0), -1)
        (((slopes.norm(2, dim=1) - 1) ** 2).mean() * 10 + model(x).mean()).backward()
        return slopes.detach()

    def parameter_penalty(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = F.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        (loss + sum((g**2).sum() for g in gradients)).backward()

    def hessian_vector(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = F.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        product = sum((g * torch.ones_like(g)).sum() for g in gradients)
        return list(torch.autograd.grad(product, list(model.parameters()), retain_graph=True, allow_unused=True))

    def create_graph_in_backward(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        x.requires_grad_()
        (model(x) ** 3).sum().backward(create_graph=True)
        first = x.grad
        for p in model.parameters():
            p.grad = None
        x.grad = None
        (first**2).sum().backward()
        return [first.detach(), x.grad.detach()]

    def maml(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        weight = torch.ones(3, 4, requires_grad=True)
        inner = F.cross_entropy(F.linear(x, weight), y)
        (step,) = torch.autograd.grad(inner, weight, create_graph=True)
        F.cross_entropy(F.linear(x, weight - 0.5 * step), y).backward()
        return weight.grad

    def functional_maml(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        names = [name for name, _ in model.named_parameters()]
        gradients = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()), create_graph=True)
        moved = {n: p - 0.5 * g for n, p, g in zip(names, model.parameters(), gradients, strict=True)}
        F.cross_entropy(torch.func.functional_call(model, moved, (x,)), y).backward()

    def twice_through(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        x.requires_grad_()
        (first,) = torch.autograd.grad((model(x) ** 2).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first**2).sum(), x, create_graph=True)
        (second**2).sum().backward()
        return second.detach()

    def outside(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        x.requires_grad_()
        value = (x**3).mean()
        (first,) = torch.autograd.grad(value, x, create_graph=True)
        (second,) = torch.autograd.grad((first * x).sum(), x)
        return [first.detach(), second]

    steps = [input_penalty, wgan, parameter_penalty, hessian_vector, create_graph_in_backward, maml, functional_maml]
    for step in (*steps, twice_through, outside):
        with case(step.__name__):
            _both(step, scale=3)


def check_hooks() -> None:
    def on_output(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        seen: list[Any] = []
        out = model(x)
        out.register_hook(lambda g: seen.append([tuple(g.shape), samestep.whole(g)]))
        F.cross_entropy(out, y).backward()
        return seen

    def changed(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        out = model(x)
        out.register_hook(lambda g: g * 2)
        out.register_hook(lambda g: g.clamp(-0.05, 0.05))
        hidden = out.tanh()
        hidden.register_hook(lambda g: g / g.norm())
        F.cross_entropy(hidden, y).backward()

    def on_loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        seen: list[Any] = []
        loss = F.cross_entropy(model(x), y)
        handle = loss.register_hook(lambda g: seen.append(g.item()))
        loss.register_hook(lambda g: g * 3)
        loss.backward(retain_graph=True)
        handle.remove()
        loss.backward()
        return seen

    def on_input(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        seen: list[Any] = []
        x.requires_grad_()
        x.register_hook(lambda g: seen.append(samestep.whole(g)))
        F.cross_entropy(model(x), y).backward()
        return [seen, x.grad]

    for step in (on_output, changed, on_loss, on_input):
        with case(step.__name__):
            _both(step)


def check_hooks_of_parameters_see_the_gradient_that_is_accumulated() -> None:
    """A tensor hook on a parameter runs before the reduction; what it does must still give the plain gradient."""

    def scaled(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        model[0].weight.register_hook(lambda g: g * 0.5)
        F.cross_entropy(model(x), y).backward()

    def masked(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        keep = torch.arange(4) > 1
        model[0].weight.register_hook(lambda g: g * keep)
        F.cross_entropy(model(x), y).backward()

    def clipped(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        for p in model.parameters():
            p.register_hook(lambda g: g.clamp(-0.02, 0.02))
        F.cross_entropy(model(x), y).backward()

    def logged(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        seen: list[float] = []
        model[0].weight.register_hook(lambda g: seen.append(float(g.norm())))
        F.cross_entropy(model(x), y).backward()
        return [round(v, 4) for v in seen]

    for step in (scaled, masked, clipped, logged):
        with case(step.__name__):
            _both(step)


def check_gradients_are_used_after_backward() -> None:
    def clip_norm(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        F.cross_entropy(model(x), y).backward()
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    def clip_value(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        F.cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)

    def by_hand(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            p.grad.data.clamp_(-0.02, 0.02)
            p.data.add_(p.grad, alpha=-0.1)
        return [p.detach().clone() for p in model.parameters()]

    def accumulated_by_hand(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        F.cross_entropy(model(x), y).backward()
        first = [p.grad.clone() for p in model.parameters()]
        for p in model.parameters():
            p.grad = None
        (model(x) ** 2).mean().backward()
        for p, g in zip(model.parameters(), first, strict=True):
            p.grad += g

    def scaler(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        scale = torch.amp.GradScaler("cpu", init_scale=8.0)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
            loss = F.cross_entropy(model(x), y)
        scale.scale(loss).backward()
        scale.unscale_(optimizer)
        scale.step(optimizer)
        scale.update()
        return [p.detach().clone() for p in model.parameters()]

    for step in (clip_norm, clip_value, by_hand, accumulated_by_hand, scaler):
        with case(step.__name__):
            _both(step)


def check_modes() -> None:
    def no_grad(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        with torch.no_grad():
            out = model(x)
            loss = F.cross_entropy(out, y)
        return [out, loss, out.requires_grad, loss.requires_grad]

    def inference(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        with torch.inference_mode():
            out = model(x)
            hits = (out.argmax(1) == y).sum().item()
            first = out[0].clone()
            best = out.max().item()
        return [samestep.whole(out).clone(), hits, first.clone(), best]

    def set_grad_enabled(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        with torch.set_grad_enabled(False):
            before = model(x)
        with torch.enable_grad():
            after = model(x)
        F.cross_entropy(after + before, y).backward()

    def decorated(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        @torch.no_grad()
        def evaluate() -> float:
            model.eval()
            value = F.cross_entropy(model(x), y).item()
            model.train()
            return value

        first = evaluate()
        F.cross_entropy(model(x), y).backward()
        return [round(first, 4), round(evaluate(), 4)]

    def anomaly(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        with torch.autograd.detect_anomaly(check_nan=True):
            F.cross_entropy(model(x), y).backward()

    def custom(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
                return value * 2

            @staticmethod
            def backward(ctx: Any, grad: torch.Tensor) -> Any:
                return grad * 5

        out = Double.apply(model(x))
        F.cross_entropy(out, y).backward()
        return out.detach()

    for step in (no_grad, inference, set_grad_enabled, decorated, anomaly, custom):
        with case(step.__name__):
            _both(step)
