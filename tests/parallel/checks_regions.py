"""Modules called with a sharded batch: outputs and parameter gradients are those of the whole batch, whatever they do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from inside.claims import case, patterns, raises, same, same_gradients, same_weights, twins
from torch import nn
from torch.utils.checkpoint import checkpoint

import samestep

ROWS = 7

Step = Callable[[Any, torch.Tensor, torch.Tensor], Any]


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(61)
    return torch.randn(ROWS, 4), torch.randint(0, 3, (ROWS,))


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def _both(make: Callable[[], Any], step: Step, *, scale: float = 1.0) -> None:
    """What `step(model, x, y)` returns, the gradients and the weights agree with those of whole tensors."""
    x, y = _data()
    truth = twins(make)[1]
    expected = step(truth, x.clone(), y)
    for sizes in patterns(ROWS):
        with case(sizes):
            ours = twins(make)[0]
            got = step(ours, samestep.shard(x.clone(), 0, sizes), samestep.shard(y, 0, sizes))
            same(got, expected, "returned", scale=scale)
            same_gradients(ours, truth, scale=scale)
            same_weights(ours, truth, scale=scale)


def _train(model: nn.Module, loss: Callable[[], torch.Tensor], steps: int = 3, lr: float = 0.1) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


class Branches(nn.Module):
    """Two layers of which a call may use one, both or none."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)
        self.unused = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, which: str = "a") -> torch.Tensor:
        out = x[:, :3] * 1.0
        for name in which:
            out = out + getattr(self, name)(x)
        return out


def check_parameters_without_a_gradient() -> None:
    def unused(model: Branches, x: torch.Tensor, y: torch.Tensor) -> Any:
        return _train(model, lambda: F.cross_entropy(model(x), y))

    def alternating(model: Branches, x: torch.Tensor, y: torch.Tensor) -> Any:
        ways = iter(["a", "b", "ab", "a"])
        return _train(model, lambda: F.cross_entropy(model(x, next(ways)), y), 4)

    def zero_grad_to_zero(model: Branches, x: torch.Tensor, y: torch.Tensor) -> Any:
        for which in ("ab", "a"):
            model.zero_grad(set_to_none=False)
            F.cross_entropy(model(x, which), y).backward()

    for step in (unused, alternating, zero_grad_to_zero):
        with case(step.__name__):
            _both(Branches, step)


class RowBranch(nn.Module):
    """Branches on the sum of its rows: another branch on each rank, were it split and trusted."""

    def __init__(self) -> None:
        super().__init__()
        self.positive, self.negative = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.positive(x) if x.sum() > 0 else self.negative(x)


class Experts(nn.Module):
    """Each row goes to the expert that it chooses: on some ranks an expert has no row, and no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(4, 3) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_zeros(x.size(0), 3)
        choice = (x[:, 0] > 0).long() + (x[:, 0] > 1).long()
        for number, expert in enumerate(self.experts):
            chosen = choice == number
            if chosen.any():
                out[chosen] = expert(x[chosen])
        return out


def check_parameters_used_on_some_ranks_only() -> None:
    def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        return _train(model, lambda: F.cross_entropy(model(x), y))

    _both(Experts, step)


def check_a_branch_on_the_whole_batch() -> None:
    x, y = _data()
    x = x.abs()
    x[-1] = -50.0
    truth = twins(RowBranch)[1]
    F.cross_entropy(truth(x), y).backward()
    for sizes in patterns(ROWS):
        with case(sizes):
            ours = twins(RowBranch)[0]
            F.cross_entropy(ours(samestep.shard(x, 0, sizes)), samestep.shard(y, 0, sizes)).backward()
            same_gradients(ours, truth)


def check_freezing_and_unfreezing() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        losses = []
        for phase in range(4):
            for p in model[0].parameters():
                p.requires_grad_(phase in (1, 3))
            for p in model[2].parameters():
                p.requires_grad_(phase != 3)
            trainable = [p for p in model.parameters() if p.requires_grad]
            optimizer = torch.optim.SGD(trainable, 0.1)
            model.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def everything_frozen(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        model.requires_grad_(False)
        x.requires_grad_()
        F.cross_entropy(model(x), y).backward()
        return x.grad

    for step_ in (step, everything_frozen):
        with case(step_.__name__):
            _both(_net, step_)


class Tied(nn.Module):
    """An autoencoder whose decoder is the transposed encoder, and a layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 3, bias=False)
        self.decoder = nn.Linear(3, 4, bias=False)
        self.decoder.weight = nn.Parameter(torch.zeros(4, 3))
        self.encoder.weight = nn.Parameter(torch.randn(3, 4))
        self.again = self.encoder

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(torch.tanh(self.encoder(x)), self.encoder.weight.t()) + self.again(x) @ self.decoder.weight.t()


def check_shared_parameters() -> None:
    def tied(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return _train(model, lambda: F.mse_loss(model(x), x))

    with case("tied weights"):
        _both(Tied, tied)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            shared = nn.Linear(4, 4)
            self.left = nn.Sequential(shared, nn.Linear(4, 3))
            self.right = nn.Sequential(shared, nn.Tanh(), nn.Linear(4, 3))

    def two_regions(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return _train(model, lambda: F.cross_entropy(model.left(x), y) + F.mse_loss(model.right(x), model.left(x)))

    def one_after_the_other(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        F.cross_entropy(model.left(x), y).backward()
        (model.right(x) ** 2).mean().backward()

    def weight_outside(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        hidden = F.linear(x, model.left[0].weight)
        return _train(model, lambda: F.cross_entropy(model.left(x), y) + (hidden.detach() ** 2).mean(), 2)

    def weight_in_the_loss(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return _train(
            model, lambda: F.cross_entropy(model.left(x), y) + F.linear(x, model.left[0].weight).pow(2).mean(), 2
        )

    for step in (two_regions, one_after_the_other, weight_outside, weight_in_the_loss):
        with case(step.__name__):
            _both(Two, step)


def check_several_calls_before_one_backward() -> None:
    def three(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return _train(model, lambda: sum(F.cross_entropy(model(x * k), y) for k in (1.0, 2.0, -1.0)))

    def whole_and_sharded(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        fixed = torch.linspace(-1, 1, 8).view(2, 4)
        return _train(model, lambda: F.cross_entropy(model(x), y) + (model(fixed) ** 2).mean())

    def whole_only_in_between(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        fixed = torch.linspace(-1, 1, 8).view(2, 4)
        F.cross_entropy(model(x), y).backward()
        (model(fixed) ** 2).mean().backward()
        F.cross_entropy(model(x), y).backward()

    def recurrent(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        def loss() -> torch.Tensor:
            state = x
            for _ in range(3):
                state = torch.cat([model(state), x[:, :1]], 1)
            return (state**2).mean()

        return _train(model, loss)

    def of_a_slice(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return _train(model, lambda: F.cross_entropy(model(x[:5]), y[:5]) + F.cross_entropy(model(x[2:]), y[2:]))

    def of_a_mask(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        keep = x[:, 0] > 0
        return _train(model, lambda: F.cross_entropy(model(x[keep]), y[keep]))

    def of_one_row(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return _train(model, lambda: F.cross_entropy(model(x[3:4]), y[3:4]) + model(x[6]).sum() + model(x[0:0]).sum())

    def of_two_batches(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return _train(model, lambda: F.cross_entropy(model(torch.cat([x, -x])), torch.cat([y, y])))

    steps = (three, whole_and_sharded, whole_only_in_between, recurrent, of_a_slice, of_a_mask, of_one_row)
    for step in (*steps, of_two_batches):
        with case(step.__name__):
            _both(_net, step)


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

    for step in (accumulated, with_penalty_between, gradient_given_before):
        with case(step.__name__):
            _both(_net, step)


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

    _both(Pair, step, scale=3)


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
        return _train(model, lambda: F.cross_entropy(model(x), y))

    def outside(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        def loss() -> torch.Tensor:
            hidden = model.first(x)
            hidden = checkpoint(model.second, hidden, use_reentrant=model.reentrant)
            return F.cross_entropy(model.last(hidden), y)

        return _train(model, loss)

    for reentrant in (False, True):
        for step in (inside, outside):
            with case((step.__name__, "reentrant" if reentrant else "not reentrant")):
                _both(lambda kind=reentrant: Checkpointed(kind), step)


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
            y = _data()[1]
            for model, x, goal in ((ours, samestep.shard(words, 0, sizes), samestep.shard(y, 0, sizes)), (truth, words, y)):
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

    _both(_net, step, scale=30)


def check_a_backward_that_raises_leaves_nothing_behind() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        def stop(grad: torch.Tensor) -> None:
            raise ValueError("stopped")

        handle = model[0].weight.register_hook(stop)
        hidden = F.cross_entropy(model(x), y)
        raises(ValueError, hidden.backward, "the hook's error")
        handle.remove()
        model.zero_grad()
        losses = _train(model, lambda: F.cross_entropy(model(x), y))
        out = model(x)
        tripped = out.register_hook(stop)
        raises(ValueError, F.cross_entropy(out, y).backward, "the output hook's error")
        tripped.remove()
        model.zero_grad()
        return losses + _train(model, lambda: F.cross_entropy(model(x), y))

    _both(_net, step)


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
        raises(ValueError, lambda: model(x), "the first call")
        model.ready = True
        first = _train(model, lambda: F.cross_entropy(model(x), y))
        model.ready = False
        raises(ValueError, lambda: model(x), "a later call")
        model.ready = True
        return first + _train(model, lambda: F.cross_entropy(model(x), y))

    _both(Picky, step)


def check_a_copied_model_goes_on_by_itself() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        _train(model, lambda: F.cross_entropy(model(x), y), 2)
        average = copy.deepcopy(model)
        for p in average.parameters():
            p.requires_grad_(False)
        for _ in range(2):
            _train(model, lambda: F.cross_entropy(model(x), y) + F.mse_loss(model(x), average(x)), 1)
            with torch.no_grad():
                for kept, p in zip(average.parameters(), model.parameters(), strict=True):
                    kept.mul_(0.9).add_(p, alpha=0.1)
        student = copy.deepcopy(model).requires_grad_(True)
        losses = _train(student, lambda: F.cross_entropy(student(x), y))
        return [losses, average.state_dict(), student.state_dict(), average(x).argmax(1)]

    _both(_net, step)
