"""Gradients of gradients, hooks, and what is done with gradients afterwards; all as on one device."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import samestep
from inside.training import ROWS, all_of


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
    all_of(*steps, twice_through, outside, scale=3)


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

    all_of(on_output, changed, on_loss, on_input)


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

    all_of(scaled, masked, clipped, logged)


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

    all_of(clip_norm, clip_value, by_hand, accumulated_by_hand, scaler)


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

    all_of(no_grad, inference, set_grad_enabled, decorated, anomaly, custom)
