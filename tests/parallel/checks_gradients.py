"""Gradients as objects that a script may hold: their memory, layout, type and history, whatever buckets do with it."""

from __future__ import annotations

import copy
import gc
import io
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import samestep
from inside.claims import case, true
from inside.training import both, data
from samestep.parallel import region


class Convolutions(nn.Module):
    """Parameters of odd lengths, layouts and no dimension at all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 5, 3, padding=1), nn.Conv2d(5, 3, 1)
        self.scale, self.nothing = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.empty(0, 3))
        self.turned = nn.Parameter(torch.linspace(-1, 1, 12).view(4, 3).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        images = self.second(F.relu(self.first(x.view(-1, 2, 1, 2)))).mean((2, 3))
        return images * self.scale + x @ self.turned.t() + self.nothing.sum()


def loss_of(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def shapes(model: nn.Module) -> Any:
    """What a script can ask of the gradients besides their numbers."""
    return [
        None if g is None else [tuple(g.shape), g.stride(), str(g.dtype), g.is_leaf, g.requires_grad, g._is_view()]
        for g in [p.grad for p in model.parameters()]
    ]


def check_a_gradient_that_is_kept_never_changes() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        kept, arrays = [], []
        for _ in range(4):
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            kept.append([p.grad for p in model.parameters()])
            arrays.append(model.scale.grad.numpy())
            optimizer.step()
        return [kept, [array.item() for array in arrays]]

    both(step, Convolutions)


def check_one_kept_gradient_of_many() -> None:
    """The last one of a bucket, or a part of one, holds the memory of all."""

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        kept = []
        for number in range(4):
            model.zero_grad()
            loss_of(model, x, y).backward()
            one = model.first.weight.grad if number % 2 else model.second.bias.grad[1:]
            kept.append(one)
            gc.collect()
        return kept

    both(step, Convolutions)


def check_gradients_that_the_script_holds_are_added_to() -> None:
    """`grad` stays the same object when it is there before backward: as set by the script, or from the step before."""

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        memory = torch.zeros(200)
        start = 0
        for p in model.parameters():
            p.grad = memory[start : start + p.numel()].view(p.shape)
            start += p.numel()
        held = [p.grad for p in model.parameters()]
        seen = []
        for _ in range(3):
            loss_of(model, x, y).backward()
            true(all(p.grad is g for p, g in zip(model.parameters(), held, strict=True)), "another object")
            seen.append(memory.clone())
            model.zero_grad(set_to_none=False)
        return [seen, memory]

    both(step, Convolutions)


def check_zeroed_and_accumulated_and_dropped_in_turn() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        seen: list[Any] = []
        for number in range(9):
            if number % 3 < 2:
                model.zero_grad(set_to_none=number % 2 == 0)
            before = [p.grad for p in model.parameters()]
            loss_of(model, x, y).backward()
            if number % 3 == 2:
                model.scale.grad = None
                loss_of(model, x, y).backward()
            seen.append([p.grad.clone() for p in model.parameters()])
            seen.append([b for b in before if b is not None])
        return seen

    both(step, Convolutions)


def check_layouts_and_versions_are_those_of_one_device() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        seen: list[Any] = []
        for number in range(3):
            model.zero_grad()
            loss_of(model, x, y).backward()
            seen.append(shapes(model))
            if number == 1:
                model.to(memory_format=torch.channels_last)
        loss_of(model, x, y).backward()
        model.first.weight.grad.mul_(2)
        return [*seen, shapes(model), [p.grad for p in model.parameters()]]

    both(step, Convolutions)


def check_changing_one_gradient_leaves_the_history_of_another() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss_of(model, x, y).backward()
        weight = torch.ones(5, requires_grad=True)
        product = (weight * model.first.bias.grad).sum()
        model.second.weight.grad.zero_()
        model.first.weight.grad.add_(1)
        product.backward()
        return weight.grad

    both(step, Convolutions)


def check_a_model_that_changes_its_type_between_steps() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        seen = []
        for kind in (torch.float32, torch.float64, torch.float64, torch.float32):
            model.to(kind)
            model.zero_grad()
            loss_of(model, x.to(kind), y).backward()
            seen.append([p.grad.clone() for p in model.parameters()])
        return [seen, shapes(model)]

    both(step, Convolutions, scale=10)


def check_half_precision_is_left_behind() -> None:
    """Gradients that float16 cannot hold, once the model is in single precision."""

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss_of(model.half(), x.half(), y).backward()
        model.float().zero_grad()
        (loss_of(model, x, y) * 1e7).backward()
        return [p.grad for p in model.parameters()]

    both(step, lambda: nn.Linear(4, 3), scale=100)


def check_a_parameter_that_grows() -> None:
    """`data` replaced by a longer tensor, as vocabularies are extended."""

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        seen = []
        for rows in (3, 5, 4):
            model.weight.data = torch.linspace(-1, 1, rows * 4).view(rows, 4)
            model.bias.data = torch.zeros(rows)
            model.zero_grad()
            loss_of(model, x, y).backward()
            seen.append([model.weight.grad, model.bias.grad])
        return seen

    both(step, lambda: nn.Linear(4, 3))


def check_gradients_with_a_history() -> None:
    """`create_graph` leaves gradients that can be differentiated; the values are the global batch's."""

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        seen = []
        for _ in range(2):
            model.zero_grad()
            loss_of(model, x, y).backward(create_graph=True)
            seen.append([p.grad.detach().clone() for p in model.parameters()])
            seen.append([p.grad.requires_grad for p in model.parameters()])
            model.zero_grad()
        return seen

    both(step, Convolutions)


def check_saved_and_copied_gradients_are_by_themselves() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss_of(model, x, y).backward()
        file = io.BytesIO()
        torch.save([p.grad for p in model.parameters()], file)
        file.seek(0)
        twins = [torch.load(file), copy.deepcopy([p.grad for p in model.parameters()])]
        for p in model.parameters():
            p.grad.zero_()
        return twins

    both(step, Convolutions)


def check_states_of_optimizers_are_not_gradients() -> None:
    """SGD with momentum keeps the first gradient by a copy, Adam by an average; `foreach` and not."""

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        seen = []
        for make in (torch.optim.SGD, torch.optim.RMSprop):
            for foreach in (False, True):
                with case(f"{make.__name__} foreach={foreach}"):
                    optimizer = make(model.parameters(), 1e-3, momentum=0.9, foreach=foreach)
                    for _ in range(3):
                        optimizer.zero_grad()
                        loss_of(model, x, y).backward()
                        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=foreach)
                        optimizer.step()
                    seen.append([p.detach().clone() for p in model.parameters()])
        return seen

    both(step, Convolutions)


class Raising(torch.autograd.Function):
    """Raises in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        raise ValueError("in the middle")


def check_gradients_that_are_dropped_after_an_exception_do_not_come_back() -> None:
    def drop(model: Any) -> None:
        for p in model.parameters():
            p.grad = None

    def assign(model: Any) -> None:
        for p in model.parameters():
            p.grad = torch.ones_like(p)

    def delete(model: Any) -> None:
        for p in model.parameters():
            del p.grad

    def penalty(model: Any) -> None:
        drop(model)
        sum(p.pow(2).sum() for p in model.parameters()).backward()

    def keep(model: Any) -> None:
        pass

    for way in (drop, assign, delete, penalty, keep):

        def step(model: Any, x: torch.Tensor, y: torch.Tensor, way: Any = way) -> Any:
            loss_of(model, x, y).backward()
            model.zero_grad()
            try:  # the last layer has its gradients by then, the first has not
                F.cross_entropy(model[2](model[1](Raising.apply(model[0](x)))), y).backward()
            except ValueError:
                way(model)
            loss_of(model, x, y).backward()
            return [p.grad for p in model.parameters()]

        with case(way.__name__):
            both(step)


def check_sparse_gradients_beside_dense_ones() -> None:
    """A table that is looked up and multiplied by, in any order, also computed again piece by piece."""

    class Tied(nn.Module):
        def __init__(self, reentrant: bool | None) -> None:
            super().__init__()
            self.table, self.layer, self.reentrant = nn.Embedding(6, 4, sparse=True), nn.Linear(4, 4), reentrant

        def again(self, function: Any, *args: Any) -> Any:
            if self.reentrant is None:
                return function(*args)
            return checkpoint(function, *args, use_reentrant=self.reentrant)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            numbers = (x.abs() * 3).long().clamp(0, 5)
            start = torch.zeros((), requires_grad=True)
            h = self.again(lambda n, s: torch.tanh(self.layer(self.table(n) + s)).mean(1), numbers, start)
            return self.again(lambda h: h @ self.table.weight.t(), h)

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        seen = []
        for _ in range(2):
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()
            seen.append([p.grad.to_dense().clone() for p in model.parameters()])
        held = model.table.weight.grad
        F.cross_entropy(model(x), y).backward()
        seen.append([held.to_dense().clone(), held.is_sparse])
        model.zero_grad()
        return seen

    for reentrant in (None, False, True):
        with case(f"use_reentrant={reentrant}"):
            both(step, lambda reentrant=reentrant: Tied(reentrant))


def check_a_sparse_gradient_stays_the_same_object() -> None:
    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.layer = nn.Embedding(6, 4, sparse=True), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.table((x.abs() * 3).long().clamp(0, 5)).mean(1))

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss_of(model, x, y).backward()
        held = model.table.weight.grad
        loss_of(model, x, y).backward()
        seen = [held.to_dense().clone(), held.is_sparse, held is model.table.weight.grad]
        model.zero_grad()
        return seen

    both(step, Lookup)


def check_hooks_that_come_later_find_the_gradient() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        seen: list[Any] = []
        for _ in range(2):
            model.zero_grad()
            loss_of(model, x, y).backward()
        for number, p in enumerate(model.parameters()):
            if number % 2 == 0:
                p.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.norm().item()))
        for _ in range(2):
            loss_of(model, x, y).backward()
        return [seen, [p.grad for p in model.parameters()]]

    both(step)


def check_optimizers_that_step_in_backward_from_some_time_on() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss_of(model, x, y).backward()
        model.zero_grad()

        def update(p: torch.Tensor) -> None:
            p.data.add_(p.grad, alpha=-0.1)
            p.grad = None

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(update)
        for _ in range(3):
            loss_of(model, x, y).backward()
        return [p.grad is None for p in model.parameters()]

    both(step)


def check_a_gradient_is_as_large_as_it_looks() -> None:
    """Alone in its storage: saved, pickled and copied by itself; kept ones do not keep their bucket for long."""

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss_of(model, x, y).backward()
        grads = [p.grad for p in model.parameters()]
        return [
            [g.storage_offset(), g.untyped_storage().nbytes(), copy.deepcopy(g).untyped_storage().nbytes()]
            for g in grads
        ]

    both(step, Convolutions)
    x, y = data()
    model = nn.Sequential(nn.Linear(4, 300), nn.Linear(300, 3))
    kept = []
    for _ in range(6):
        model.zero_grad()
        loss_of(model, samestep.shard(x), samestep.shard(y)).backward()
        kept.append(model[0].bias.grad)
    memories = {id(b._buffer) for b in region._KNOWN[model].buckets}
    true(all(p.grad.data_ptr() == p.grad.untyped_storage().data_ptr() for p in model.parameters()), "a view")
    lying = [k for k in kept for b in region._KNOWN[model].buckets if _inside(k, b._buffer.flat)]
    true(len(memories) == 1 and not lying, f"{len(lying)} kept gradients lie in the bucket")


def _inside(grad: Any, flat: torch.Tensor) -> bool:
    return bool(flat.data_ptr() <= grad.data_ptr() < flat.data_ptr() + flat.nbytes)
