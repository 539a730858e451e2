"""Batch norm on a rank's rows is that of the whole batch: outputs, gradients of any order, running statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import samestep
from inside.claims import case, patterns, raises, same, same_gradients, same_weights, true, twins, world
from samestep.ledger import LEDGER

ROWS = 7


class Normed(nn.Module):
    """A norm between two layers, for rows with any number of dimensions behind the channels."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 6), norm(6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x).movedim(-1, 1)).movedim(1, -1)
        return self.last(torch.relu(x))


def _data(*dims: int) -> torch.Tensor:
    torch.manual_seed(8)
    return torch.randn(ROWS, *dims, 3) * 2 + 1


def _step(model: nn.Module, x: torch.Tensor, steps: int = 2) -> list[torch.Tensor]:
    x = x.clone()
    seen = []
    for _ in range(steps):
        tracked = x.detach().requires_grad_()
        out = model(tracked)
        out.pow(2).mean().backward()
        seen += [out.detach(), tracked.grad]
    return seen


def _as_on_one_device(
    make: Callable[[], nn.Module],
    x: torch.Tensor,
    step: Callable[..., Any] = _step,
    *,
    scale: float = 10.0,
    truly: Callable[[], nn.Module] | None = None,
) -> None:
    """`step`'s results, gradients and running statistics are those of one device, however the rows lie.

    `truly` makes the module of the one device, if not `make`.
    """
    truth = twins(truly or make)[1]
    expected = step(truth, x)
    for sizes in patterns(ROWS):
        with case(sizes):
            ours = twins(make)[0]
            got = step(ours, samestep.shard(x, 0, sizes))
            same(got, expected, "returned", scale=scale)
            same_weights(ours, truth, scale=scale)
            same_gradients(ours, truth, scale=scale)


def _was_split(name: str) -> None:
    found = {key: plan for key, plan in LEDGER.regions.items() if key.startswith(name)}
    true(found and all(plan == "split" for plan in found.values()), f"not split: {found}")


def check_every_kind_of_norm() -> None:
    kinds: dict[str, tuple[tuple[int, ...], Callable[[int], nn.Module]]] = {
        "1d": ((), nn.BatchNorm1d),
        "1d with length": ((5,), nn.BatchNorm1d),
        "2d": ((4, 3), nn.BatchNorm2d),
        "3d": ((2, 3, 2), nn.BatchNorm3d),
        "momentum None": ((4, 3), lambda c: nn.BatchNorm2d(c, momentum=None)),
        "momentum 1": ((), lambda c: nn.BatchNorm1d(c, momentum=1.0, eps=1e-2)),
        "without weights": ((4, 3), lambda c: nn.BatchNorm2d(c, affine=False)),
        "without bias": ((), lambda c: _without_bias(nn.BatchNorm1d(c))),
        "without statistics": ((), lambda c: nn.BatchNorm1d(c, track_running_stats=False)),
        "SyncBatchNorm": ((4, 3), nn.SyncBatchNorm),
        "SyncBatchNorm, momentum None": ((), lambda c: nn.SyncBatchNorm(c, momentum=None)),
        "converted": ((4, 3), lambda c: nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm2d(c)))),
        "instance norm": ((4, 3), lambda c: nn.InstanceNorm2d(c, affine=True)),
        "group norm": ((4, 3), lambda c: nn.GroupNorm(2, c)),
    }
    for name, (dims, kind) in kinds.items():
        LEDGER.regions.clear()
        with case(name):
            _as_on_one_device(lambda kind=kind: Normed(kind), _data(*dims))
            _was_split("Normed")


def _without_bias(norm: nn.Module) -> nn.Module:
    norm.bias = None
    return norm


def check_evaluation_is_that_of_one_device() -> None:
    """Also in turns with training, and with the norm alone in evaluation mode (frozen)."""

    def turns(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        seen = []
        for training in (True, False, True, True, False):
            model.train(training)
            out = model(x)
            out.pow(2).mean().backward()
            seen.append(out.detach())
        return seen

    def frozen(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
        model(x)
        model.norm.eval()
        for p in model.norm.parameters():
            p.requires_grad_(False)
        return _step(model, x)

    for kind in (nn.BatchNorm2d, lambda c: nn.BatchNorm2d(c, track_running_stats=False), nn.SyncBatchNorm):
        _as_on_one_device(lambda kind=kind: Normed(kind), _data(4, 3), turns)
        _as_on_one_device(lambda kind=kind: Normed(kind), _data(4, 3), frozen)


def check_without_gradients_the_running_statistics_move() -> None:
    def look(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            first = model(x)
        with torch.inference_mode():
            second = samestep.whole(model(x)).clone()
        return [first, second]

    _as_on_one_device(lambda: Normed(nn.BatchNorm2d), _data(4, 3), look)


def check_memory_formats_and_dtypes() -> None:
    x = _data(4, 3)

    class Image(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Conv2d(3, 6, 2), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 2, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

    image = x.movedim(-1, 1).contiguous()
    with case("channels last"):
        _as_on_one_device(
            lambda: Image().to(memory_format=torch.channels_last), image.contiguous(memory_format=torch.channels_last)
        )
    with case("double"):
        _as_on_one_device(lambda: Normed(nn.BatchNorm2d).double(), x.double())
    for dtype in (torch.bfloat16, torch.float16):
        with case(dtype):
            _as_on_one_device(lambda dtype=dtype: Normed(nn.BatchNorm2d).to(dtype), x.to(dtype), scale=3)
        with case(("norm in single precision", dtype)):  # whose gradients come from rounded numbers
            _as_on_one_device(lambda dtype=dtype: Mixed(dtype), x.to(dtype), scale=300)
    with case("autocast"):
        _as_on_one_device(lambda: Normed(nn.BatchNorm2d), x, _under_autocast, scale=3000)


class Mixed(Normed):
    """Layers in half precision, the norm in single, as mixed training has it."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(nn.BatchNorm2d)
        self.first.to(dtype)
        self.last.to(dtype)


def _under_autocast(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)
    out.float().pow(2).mean().backward()
    return [out.detach()]


def check_called_as_a_function() -> None:
    class Direct(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 6)
            self.register_buffer("mean", torch.zeros(6))
            self.register_buffer("var", torch.ones(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = F.batch_norm(self.layer(x), self.mean, self.var, training=self.training, momentum=0.3)
            return F.batch_norm(x.relu(), None, None, bias=x.new_ones(6), training=True, eps=0.1)

    _as_on_one_device(Direct, _data())


def check_gradients_of_gradients() -> None:
    """A gradient penalty through batch norm, as in WGAN-GP with a critic that has one."""

    def penalty(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        tracked = x.clone().requires_grad_()
        out = model(tracked)
        (grad,) = torch.autograd.grad(out.pow(2).sum(), tracked, create_graph=True)
        loss = (grad.flatten(1).norm(dim=1) - 1).pow(2).mean() + out.mean()
        loss.backward()
        return [loss.detach(), tracked.grad]

    def third(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        tracked = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(model(tracked).pow(3).sum(), tracked, create_graph=True)
        (again,) = torch.autograd.grad(grad.pow(2).sum(), tracked, create_graph=True)
        (again * grad).mean().backward()
        return [again.detach(), tracked.grad]

    x = _data(4, 3).double()
    for kind in (nn.BatchNorm2d, lambda c: nn.BatchNorm2d(c, affine=False), nn.SyncBatchNorm):
        LEDGER.regions.clear()
        # In double precision: cubes of cubes.
        with case("penalty"):
            _as_on_one_device(lambda kind=kind: Normed(kind).double(), x, penalty)
        with case("third order"):  # which torch 2.13's own kernel gets wrong
            _as_on_one_device(
                lambda kind=kind: _without_statistics(kind).double(),
                x,
                third,
                truly=lambda kind=kind: _without_statistics(kind, by_hand=True).double(),
            )
        _was_split("Normed")


def _without_statistics(kind: Callable[[int], Any], *, by_hand: bool = False) -> nn.Module:
    model: Any = Normed(kind)
    model.norm.running_mean = model.norm.running_var = model.norm.num_batches_tracked = None
    model.norm.track_running_stats = False
    if by_hand:
        model.norm.__class__ = ByHand
    return model


class ByHand(nn.BatchNorm2d):
    """Batch norm of operations whose derivatives torch knows at every order."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean((0, 2, 3), keepdim=True)
        out = centred * torch.rsqrt(centred.pow(2).mean((0, 2, 3), keepdim=True) + self.eps)
        if self.weight is None:
            return out
        return out * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)


def check_activations_computed_again() -> None:
    """Checkpointing moves the running statistics twice, on one device and here, by the same numbers."""
    for reentrant in (True, False):
        for preserve in (True, False):

            class Again(Normed):
                ways = (reentrant, preserve)

                def forward(self, x: torch.Tensor) -> torch.Tensor:
                    reentrant, preserve = self.ways
                    return checkpoint(super().forward, x, use_reentrant=reentrant, preserve_rng_state=preserve)

            LEDGER.regions.clear()
            with case((reentrant, preserve)):
                _as_on_one_device(lambda kind=Again: kind(nn.BatchNorm1d), _data())
                _was_split("Again")
    with case("outside"):
        _as_on_one_device(
            lambda: Normed(nn.BatchNorm1d),
            _data(),
            lambda model, x: _step(lambda rows: checkpoint(model, rows, use_reentrant=False), x),  # type: ignore[arg-type]
        )


def check_called_twice_before_backward() -> None:
    def twice(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        first, second = model(x), model(x * 2)
        (first.mean() + (first * second).mean()).backward()
        return [first.detach(), second.detach()]

    _as_on_one_device(lambda: Normed(nn.BatchNorm1d), _data(), twice)


def check_lazy() -> None:
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.LazyLinear(6), nn.LazyBatchNorm1d(), nn.LazyLinear(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

    def step(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        torch.manual_seed(4)
        return _step(model, x)

    _as_on_one_device(Lazy, _data(), step)


def check_a_norm_of_what_is_not_the_batch() -> None:
    """A table is the same on every rank: counted once per rank, its unbiased variance would be a little too small."""

    class Prototypes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm, self.layer = nn.Embedding(900, 6), nn.BatchNorm1d(6), nn.Linear(3, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) @ self.norm(self.table.weight).t()

    LEDGER.regions.clear()
    _as_on_one_device(Prototypes, _data())
    true("split" not in LEDGER.regions["Prototypes (training)"], "split, whatever the size of the table")


def check_one_value_per_channel_is_refused() -> None:
    message = "Expected more than 1 value per channel when training, got input size"
    for norm, x in ((nn.BatchNorm1d(3), torch.randn(1, 3)), (nn.BatchNorm2d(3), torch.randn(1, 3, 1, 1))):
        for sizes in patterns(1):
            with case(sizes):
                try:
                    norm(samestep.shard(x, 0, sizes))
                except ValueError as error:
                    true(f"{message} {x.shape}" in str(error), f"another message: {error}")
                else:
                    true(False, "was not refused")
    # One row on each rank is enough.
    _one_row_each()


def _one_row_each() -> None:
    x = torch.randn(world().size, 3)
    truth, ours = twins(lambda: nn.BatchNorm1d(3))
    same(ours(samestep.shard(x)), truth(x), "one row each")
    same_weights(ours, truth)


class Careful(Normed):
    """Raises for some rows before others wait for it in a batch norm."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.isfinite(self.first(x)).all():
            raise ValueError("not finite")
        return super().forward(x)


def check_a_rank_that_raises_before_the_norm() -> None:
    x, y = _data(), _data()
    x[-1] = float("nan")
    for sizes in patterns(ROWS):
        with case(sizes):
            ours, truth = twins(lambda: Careful(nn.BatchNorm1d))
            raises(ValueError, "rows that are not finite", ours, samestep.shard(x, 0, sizes))
            same(ours(samestep.shard(y, 0, sizes)), truth(y), "afterwards", scale=10)
            same_weights(ours, truth)


def check_wrong_arguments_are_refused() -> None:
    x = samestep.shard(torch.randn(ROWS, 4))
    raises((RuntimeError, ValueError), "too few channels", nn.BatchNorm1d(3), x)
    raises((RuntimeError, ValueError), "too few dimensions", nn.BatchNorm2d(4), x)
    same(nn.BatchNorm1d(4)(x), nn.BatchNorm1d(4)(samestep.whole(x)), "afterwards")


def check_types_and_keys_stay() -> None:
    ours, truth = twins(lambda: Normed(nn.BatchNorm1d))
    _step(ours, samestep.shard(_data()))
    true(type(ours.norm) is nn.BatchNorm1d, "another type")
    true(list(ours.state_dict()) == list(truth.state_dict()), "other keys")
    same(ours.norm.num_batches_tracked, torch.tensor(2), "num_batches_tracked")
    true(all(type(b) is torch.Tensor for b in ours.buffers()), "other tensors")


def check_evaluation_and_training_before_one_backward() -> None:
    """The training forward writes the statistics that the other one has saved, as torch's kernel does."""

    def step(model: Any, x: torch.Tensor) -> Any:
        model.eval()
        first = model(x)
        model.train()
        second = model(x)
        (first.pow(2).mean() + second.abs().mean()).backward()
        return [p.grad for p in model.parameters()] + [model[1].running_mean, model[1].running_var]

    torch.manual_seed(3)
    x = torch.randn(9, 4)
    for sizes in patterns(9):
        with case(sizes):
            ours, truth = twins(lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)))
            same(step(ours, samestep.shard(x, 0, sizes)), step(truth, x), scale=10)
