"""Mixed precision, clipping, hooks on parameters, zeroed gradients, a backward that raises: as on one device."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import custom_bwd, custom_fwd

import samestep
from inside.claims import case, patterns, raises, same, same_gradients, same_weights, true, twins
from inside.training import ROWS, Step, all_of, both, data, net, train

#: Sums of 16-bit products are rounded once per rank instead of once: some units of bfloat16's eighth bit.
BFLOAT16 = 200.0
FLOAT16 = 30.0


# ---------------------------------------------------------------------- autocast and scalers
class Cast(nn.Module):
    """Autocasts inside `forward`, and leaves it for the last layer."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.net, self.head, self.dtype = net(), nn.Linear(3, 3), dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", self.dtype):
            hidden = self.net(x)
            with torch.autocast("cpu", enabled=False):
                return self.head(hidden.float())


def check_autocast() -> None:
    for dtype, scale in ((torch.bfloat16, BFLOAT16), (torch.float16, FLOAT16)):

        def around(model: Any, x: torch.Tensor, y: torch.Tensor, dtype: torch.dtype = dtype) -> Any:
            def loss() -> torch.Tensor:
                with torch.autocast("cpu", dtype):
                    out = model(x)
                    same(out.dtype, dtype, "dtype of the output")
                    return F.cross_entropy(out, y)

            return train(model, loss)

        def around_the_model_only(model: Any, x: torch.Tensor, y: torch.Tensor, dtype: torch.dtype = dtype) -> Any:
            def loss() -> torch.Tensor:
                with torch.autocast("cpu", dtype):
                    out = model(x)
                return F.cross_entropy(out.float(), y)

            return train(model, loss)

        def inside(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
            return train(model, lambda: F.cross_entropy(model(x), y))

        with case(dtype):
            all_of(around, around_the_model_only, scale=scale)
            all_of(inside, make=lambda dtype=dtype: Cast(dtype), scale=scale)


def scaled(model: nn.Module, batches: list[Any], dtype: torch.dtype | None, **options: Any) -> Any:
    """Training with a gradient scaler: the losses, and after each step the scale and the clipped norm."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", **options)
    seen = []
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            loss = F.cross_entropy(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        seen.append([scaler.get_scale(), bool(torch.isfinite(norm))])
    return seen


def check_scaler_with_overflow() -> None:
    """An infinite gradient in the rows of one rank makes all ranks skip the step, and the scale goes its way."""
    x, y = data()
    worst = x.clone()
    worst[-1] = float("inf")
    options = {"init_scale": 2.0**10, "growth_interval": 2}
    for dtype, scale in ((None, 1.0), (torch.bfloat16, BFLOAT16), (torch.float16, FLOAT16)):
        truth = twins(net)[1]
        expected = scaled(truth, [(x, y), (worst, y), (x, y), (x, y), (worst, y), (x, y)], dtype, **options)
        true([finite for _, finite in expected].count(False) == 2, "the truth overflows twice")
        for sizes in patterns(ROWS):
            with case((dtype, sizes)):
                ours = twins(net)[0]
                xs, ws, ys = (samestep.shard(t.clone(), 0, sizes) for t in (x, worst, y))
                batches = [(xs, ys), (ws, ys), (xs, ys), (xs, ys), (ws, ys), (xs, ys)]
                same(scaled(ours, batches, dtype, **options), expected, "scales")
                same_weights(ours, truth, scale=scale)


class Squared(torch.autograd.Function):
    """A function of the user's with its own precision."""

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class WithFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(Squared.apply(self.first(x)))


def check_functions_with_their_own_precision() -> None:
    def inside(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        def loss() -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return F.cross_entropy(model(x), y)

        return train(model, loss)

    def outside(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        def loss() -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return Squared.apply(model(x)).mean()

        return train(model, loss)

    def without_autocast(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return train(model, lambda: F.cross_entropy(Squared.apply(model(x)), y), lr=0.01)

    all_of(inside, outside, make=WithFunction, scale=BFLOAT16)
    all_of(without_autocast, make=WithFunction)


class Mixed(nn.Module):
    """Parameters of four dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.wide = nn.Linear(4, 5), nn.Linear(5, 5).double()
        self.coarse, self.last = nn.Linear(5, 5).bfloat16(), nn.Linear(5, 3).half()
        self.phase = nn.Parameter(torch.randn(3, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.wide(self.first(x).double()))
        out = self.last(self.coarse(hidden.bfloat16()).half()).float()
        return (out * self.phase).abs()


def check_mixed_dtypes() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        dtype = next(iter(model.children())).weight.dtype
        at_least_single = torch.promote_types(dtype, torch.float32)
        losses = train(model, lambda: F.cross_entropy(model(x.to(dtype)).to(at_least_single), y))
        return torch.tensor(losses, dtype=dtype)

    x, y = data()
    truth = twins(Mixed)[1]
    expected = step(truth, x, y)
    for sizes in patterns(ROWS):
        with case(("four dtypes", sizes)):
            ours = twins(Mixed)[0]
            same(
                step(ours, samestep.shard(x, 0, sizes), samestep.shard(y, 0, sizes)), expected, "losses", scale=BFLOAT16
            )
            for (name, mine), theirs in zip(ours.named_parameters(), truth.parameters(), strict=True):
                single = torch.complex64 if mine.is_complex() else torch.float32  # no more than the coarsest allows
                same(mine.grad.to(single), theirs.grad.to(single), f"gradient of {name}", scale=BFLOAT16)
                same(mine.dtype, theirs.dtype, f"dtype of {name}")
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        with case(dtype):
            both(step, lambda dtype=dtype: net().to(dtype))


# ---------------------------------------------------------------------- clipping, zeroing
def check_clipping() -> None:
    utils = torch.nn.utils
    ways: dict[str, Any] = {
        "norm": lambda p: utils.clip_grad_norm_(p, 0.1),
        "largest": lambda p: utils.clip_grad_norm_(p, 0.05, norm_type=float("inf")),
        "one by one": lambda p: utils.clip_grad_norm_(p, 0.1, foreach=False),
        "total": lambda p: utils.get_total_norm([q.grad for q in p]),
        "value": lambda p: utils.clip_grad_value_(p, 0.01),
        "value one by one": lambda p: utils.clip_grad_value_(p, 0.01, foreach=False),
        "by hand": lambda p: [q.grad.data.clamp_(-0.01, 0.01).norm() for q in p],
    }
    for name, clip in ways.items():

        def step(model: Any, x: torch.Tensor, y: torch.Tensor, clip: Any = clip) -> Any:
            optimizer = torch.optim.Adam(model.parameters(), 0.01)
            seen = []
            for _ in range(3):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                seen.append(clip(list(model.parameters())))
                optimizer.step()
            return seen

        with case(name):
            both(step)


def check_gradients_set_to_zero_in_every_way() -> None:
    def ways(model: nn.Module, optimizer: Any) -> Iterator[None]:
        for to_none in (True, False):
            model.zero_grad(set_to_none=to_none)
            yield
            optimizer.zero_grad(set_to_none=to_none)
            yield
        for p in model.parameters():
            p.grad = None
        yield
        for p in model.parameters():
            p.grad.zero_()
        yield
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        yield
        model[0].zero_grad()  # the rest accumulates
        yield

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        losses = []
        for _ in ways(model, optimizer):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    both(step)


# ---------------------------------------------------------------------- hooks of the script's
def check_hooks_on_parameters() -> None:
    def of_tensor(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        seen: list[float] = []

        def scale(grad: torch.Tensor) -> torch.Tensor:
            seen.append(float(grad.norm()))
            return grad.clamp(-0.02, 0.02)

        before = train(model, lambda: F.cross_entropy(model(x), y), 1)
        handles = [p.register_hook(scale) for p in model[0].parameters()]
        during = train(model, lambda: F.cross_entropy(model(x), y), 2)
        for handle in handles:
            handle.remove()
        return [before, during, train(model, lambda: F.cross_entropy(model(x), y), 2), sorted(seen)]

    def after_accumulation(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        seen: list[float] = []

        def look(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            seen.append(float(parameter.grad.norm()))
            parameter.grad.mul_(0.5)

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(look)
        losses = train(model, lambda: F.cross_entropy(model(x), y) + F.cross_entropy(model(x * 2), y))
        return [losses, sorted(seen)]

    def optimizer_in_backward(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        first = train(model, lambda: F.cross_entropy(model(x), y), 1)  # without hooks, so that buckets are there
        model.zero_grad()
        optimizers = {p: torch.optim.Adam([p], 0.02) for p in model.parameters()}

        def update(parameter: torch.Tensor) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for p in optimizers:
            p.register_post_accumulate_grad_hook(update)
        losses = []
        for _ in range(4):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            losses.append(loss.item())
        return [first, losses, [p.grad for p in model.parameters()]]

    all_of(of_tensor, after_accumulation, optimizer_in_backward)


# ---------------------------------------------------------------------- a backward that raises
class Trap(torch.autograd.Function):
    """Raises in backward while it is armed."""

    armed = False

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        if Trap.armed:
            raise ValueError("trapped")
        return grad


class Trapped(nn.Module):
    """Its last layers have their gradients when the trap snaps, its first ones not."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.first, self.last, self.head = nn.Linear(4, width), nn.Linear(width, width), nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.last(Trap.apply(torch.tanh(self.first(x))))))


def snap(loss: torch.Tensor) -> None:
    """A backward that raises in the middle."""
    Trap.armed = True
    raises(ValueError, "the trap's error", loss.backward)
    Trap.armed = False


def after_it_raised() -> list[Step]:
    """What a script may do after its backward raised."""

    def zero_and_go_on(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        losses = train(model, lambda: F.cross_entropy(model(x), y), 1)
        snap(F.cross_entropy(model(x), y))
        model.zero_grad()
        return losses + train(model, lambda: F.cross_entropy(model(x), y), 2)

    def look(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        train(model, lambda: F.cross_entropy(model(x), y), 1)
        snap(F.cross_entropy(model(x), y))
        return [None if p.grad is None else p.grad.clone() for p in model.parameters()]

    def accumulate(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        snap(F.cross_entropy(model(x), y))
        snap(F.cross_entropy(model(x * 2), y))
        F.cross_entropy(model(x), y).backward()

    def swallow_and_step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for number in range(4):
            optimizer.zero_grad()
            Trap.armed = number % 2 == 0
            with contextlib.suppress(ValueError):
                F.cross_entropy(model(x), y).backward()
            optimizer.step()
        Trap.armed = False

    def another_model_in_between(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        torch.manual_seed(8)
        other = net()
        snap(F.cross_entropy(model(x), y))
        F.cross_entropy(other(x), y).backward()
        F.cross_entropy(model(x), y).backward()
        return [p.grad for p in other.parameters()]

    return [zero_and_go_on, look, accumulate, swallow_and_step, another_model_in_between]


def check_a_backward_that_raises() -> None:
    all_of(*after_it_raised(), make=Trapped)


def check_a_backward_that_raises_after_sums_have_started() -> None:
    """A layer as large as a bucket, so that a sum is under way when it raises."""
    all_of(*after_it_raised()[1:4], make=lambda: Trapped(520), scale=3)


def check_warnings_of_torch_stay_as_they_are() -> None:
    """Looking at `.grad` of a tensor that is no leaf warns as always, while a sum is owed, too."""
    x, y = data()
    model = nn.DataParallel(net())
    with model.no_sync():
        F.cross_entropy(model(samestep.shard(x)), y).backward()
    inner = torch.ones(2, requires_grad=True) * 2
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        true(inner.grad is None, "grad of an inner tensor")
    true(any("not a leaf" in str(w.message) for w in said), "torch's warning")
    truth = twins(net)[1]
    truth.load_state_dict(model.module.state_dict())
    F.cross_entropy(truth(x), y).backward()
    same_gradients(model.module, truth)
