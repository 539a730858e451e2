"""Training steps of every kind through regions: what the script does around forward and backward."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import samestep
from inside.claims import case, patterns, raises, same, same_gradients, same_weights, twins
from inside.training import ROWS, all_of, both, data, train


def check_accumulation_over_several_backwards() -> None:
    def accumulated(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        optimizer = torch.optim.Adam(model.parameters(), 0.05)
        for number in range(6):
            (F.cross_entropy(model(x * (number + 1)), y) / 3).backward()
            if number % 3 == 2:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()

    def with_penalty_between(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        sum((p**2).sum() for p in model.parameters()).backward()
        F.cross_entropy(model(x), y).backward()
        sum(p.abs().sum() for p in model.parameters()).backward()
        F.cross_entropy(model(x), y, reduction="sum").backward()

    def gradient_given_before(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        F.cross_entropy(model(x), y).backward()

    all_of(accumulated, with_penalty_between, gradient_given_before)


def check_adversarial_training() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
            self.critic = nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(0.2), nn.Linear(6, 1))

    def step(pair: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        first = torch.optim.Adam(pair.generator.parameters(), 0.02)
        second = torch.optim.Adam(pair.critic.parameters(), 0.02)
        judge = nn.BCEWithLogitsLoss()
        logged = []
        for _ in range(3):
            pair.critic.requires_grad_(True)
            second.zero_grad()
            fake = pair.generator(torch.flip(x, (1,)))
            real_loss = judge(pair.critic(x), torch.ones(x.size(0), 1))
            fake_loss = judge(pair.critic(fake.detach()), torch.zeros(x.size(0), 1))
            (real_loss + fake_loss).backward()
            second.step()
            pair.critic.requires_grad_(False)
            first.zero_grad()
            loss = judge(pair.critic(fake), torch.ones_like(real_loss).expand(x.size(0), 1))
            loss.backward()
            first.step()
            logged.append([real_loss.item(), fake_loss.item(), loss.item()])
        return logged

    both(step, Pair, scale=3)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first, self.second, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        hidden = checkpoint(lambda h: torch.tanh(self.second(h)), hidden, use_reentrant=self.reentrant)
        hidden = checkpoint(lambda h: torch.tanh(self.second(h)), hidden, use_reentrant=self.reentrant)
        return self.last(hidden)


def check_checkpointing() -> None:
    def inside(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return train(model, lambda: F.cross_entropy(model(x), y))

    def outside(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        def loss() -> torch.Tensor:
            hidden = model.first(x)
            hidden = checkpoint(model.second, hidden, use_reentrant=model.reentrant)
            return F.cross_entropy(model.last(hidden), y)

        return train(model, loss)

    for reentrant in (False, True):
        for step in (inside, outside):
            with case((step.__name__, "reentrant" if reentrant else "not reentrant")):
                both(step, lambda kind=reentrant: Checkpointed(kind))


def check_sparse_gradients() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 4, sparse=True)
            self.head = nn.Linear(4, 3)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(words).mean(1))

    words = torch.arange(ROWS * 2).view(ROWS, 2) % 10
    for sizes in patterns(ROWS):
        with case(sizes):
            ours, truth = twins(Words)
            y = data()[1]
            for model, x, goal in (
                (ours, samestep.shard(words, 0, sizes), samestep.shard(y, 0, sizes)),
                (truth, words, y),
            ):
                optimizer = torch.optim.SGD(model.parameters(), 0.5)
                for _ in range(3):
                    optimizer.zero_grad()
                    F.cross_entropy(model(x), goal).backward()
                    optimizer.step()
                F.cross_entropy(model(x), goal).backward()
                same(model.table.weight.grad.is_sparse, True, "sparse")
            same_gradients(ours, truth)
            same_weights(ours, truth)


def check_lbfgs() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return [float(optimizer.step(closure)) for _ in range(2)]

    both(step, scale=30)


def check_a_backward_that_raises_leaves_nothing_behind() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        def stop(grad: torch.Tensor) -> None:
            raise ValueError("stopped")

        handle = model[0].weight.register_hook(stop)
        hidden = F.cross_entropy(model(x), y)
        raises(ValueError, "the hook's error", hidden.backward)
        handle.remove()
        model.zero_grad()
        losses = train(model, lambda: F.cross_entropy(model(x), y))
        out = model(x)
        tripped = out.register_hook(stop)
        raises(ValueError, "the output hook's error", F.cross_entropy(out, y).backward)
        tripped.remove()
        model.zero_grad()
        return losses + train(model, lambda: F.cross_entropy(model(x), y))

    both(step)


def check_a_forward_that_raises_leaves_nothing_behind() -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.ready = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.layer(x)
            if not self.ready:
                raise ValueError("not ready")
            return out

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        model.ready = False
        raises(ValueError, "the first call", lambda: model(x))
        model.ready = True
        first = train(model, lambda: F.cross_entropy(model(x), y))
        model.ready = False
        raises(ValueError, "a later call", lambda: model(x))
        model.ready = True
        return first + train(model, lambda: F.cross_entropy(model(x), y))

    both(step, Picky)


def check_a_copied_model_goes_on_by_itself() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        train(model, lambda: F.cross_entropy(model(x), y), 2)
        average = copy.deepcopy(model)
        for p in average.parameters():
            p.requires_grad_(False)
        for _ in range(2):
            train(model, lambda: F.cross_entropy(model(x), y) + F.mse_loss(model(x), average(x)), 1)
            with torch.no_grad():
                for kept, p in zip(average.parameters(), model.parameters(), strict=True):
                    kept.mul_(0.9).add_(p, alpha=0.1)
        student = copy.deepcopy(model).requires_grad_(True)
        losses = train(student, lambda: F.cross_entropy(student(x), y))
        return [losses, average.state_dict(), student.state_dict(), average(x).argmax(1)]

    both(step)


def check_gradients_of_gradients_alone() -> None:
    """A penalty on gradients whose backward is a pass of its own: no output of the region takes part in it."""

    def of_inputs(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x)[:, 0].sum(), x, create_graph=True)
        (slope.norm(dim=1) - 1).pow(2).mean().backward()
        return [slope.detach(), x.grad]

    def one_after_the_other(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            mixed = (x.data * 0.7).requires_grad_(True)
            F.cross_entropy(model(x), y).backward()
            (slope,) = torch.autograd.grad(model(mixed).sum(), mixed, create_graph=True, retain_graph=True)
            (10 * ((slope.norm(2, dim=1) - 1) ** 2).mean()).backward()
            optimizer.step()

    def of_a_whole_argument(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        scale = torch.ones(4, requires_grad=True)
        out = Scaled(model)(x, scale)
        (slope,) = torch.autograd.grad(out.pow(2).mean(), scale, create_graph=True)
        slope.pow(2).sum().backward()
        return [slope.detach(), scale.grad]

    def of_parameters(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        slopes = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()), create_graph=True)
        sum(s.pow(2).sum() for s in slopes).backward()
        return [s.detach() for s in slopes]

    all_of(of_inputs, one_after_the_other, of_a_whole_argument, of_parameters)


class Scaled(nn.Module):
    """Takes a whole tensor beside the batch."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x * scale)
        return out
