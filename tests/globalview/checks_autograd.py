"""The autograd surface: gradients of, and to, global tensors are the global ones, of every order."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from inside.claims import raises, true
from inside.training import ROWS, all_of, both


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

    all_of(whole_gradient, sharded_gradient, like, per_sample, scalar, scalar_of_its_own, several, vector_sum)
    all_of(one_element, row)


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
        raises(RuntimeError, "a second backward through a graph that was released", loss.backward)

    all_of(retained, two_losses, released)


def check_what_cannot_be_differentiated_raises() -> None:
    def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        raises(RuntimeError, "backward of many without a gradient", lambda: model(x).backward())
        raises(RuntimeError, "backward of a detached loss", lambda: model(x).detach().sum().backward())
        raises(RuntimeError, "backward of data", lambda: (x * 2).sum().backward())
        with torch.no_grad():
            loss = F.cross_entropy(model(x), y)
        raises(RuntimeError, "backward of a loss made under no_grad", loss.backward)
        raises(RuntimeError, "integers that require a gradient", lambda: y.requires_grad_())

    both(step)


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

    all_of(leaf, attribute, fgsm, whole_delta, full_delta, retained, detached, detach_in_place)


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
        raises(RuntimeError, "unused without allow_unused", lambda: torch.autograd.grad(loss, other, retain_graph=True))
        return list(torch.autograd.grad(loss, [model[0].bias, other], allow_unused=True))

    def materialized(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        other = torch.ones(1, requires_grad=True)
        loss = F.cross_entropy(model(x), y)
        return list(torch.autograd.grad(loss, [model[0].bias, other], materialize_grads=True))

    def inputs_only(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        F.cross_entropy(model(x), y).backward(inputs=[model[0].weight])

    steps = [to_input, to_intermediate, to_parameters, to_parameters_with_penalty, to_one_parameter, with_grad_outputs]
    all_of(*steps, to_whole, unused, materialized, inputs_only)
