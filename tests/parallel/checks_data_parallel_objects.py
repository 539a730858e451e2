"""`nn.DataParallel` as an object: subclasses as they are found, copies and pickles, `no_sync`; and what is refused."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import parallel_apply
from torch.nn.parallel._functions import Scatter

import samestep
from inside.claims import case, same, same_gradients, same_weights, true, twins, world
from inside.training import data, net, train
from inside.wrapped import Normed, batch, fit, given


# ---------------------------------------------------------------------- subclasses as they are found
class Balanced(nn.DataParallel):
    """Fewer rows for the first device."""

    def __init__(self, first_rows: int, *args: Any, **kwargs: Any) -> None:
        self.first_rows = first_rows
        super().__init__(*args, **kwargs)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if not self.device_ids:
            return self.module(*inputs, **kwargs)
        device_ids = self.device_ids if self.first_rows else self.device_ids[1:]
        inputs, kwargs = self.scatter(inputs, kwargs, device_ids)
        if len(self.device_ids) == 1:
            return self.module(*inputs[0], **kwargs[0])
        replicas = self.replicate(self.module, self.device_ids[: len(inputs)])
        outputs = self.parallel_apply(replicas, device_ids, inputs, kwargs)
        return self.gather(outputs, self.output_device)

    def parallel_apply(self, replicas: Any, device_ids: Any, inputs: Any, kwargs: Any) -> Any:
        return parallel_apply(replicas, inputs, kwargs, device_ids[: len(inputs)])

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        rows, others = inputs[0].size(self.dim), len(self.device_ids) - 1
        unit = (rows - self.first_rows) // others
        if self.first_rows >= unit:
            return super().scatter(inputs, kwargs, device_ids)
        chunk_sizes = [self.first_rows] + [unit] * others
        for i in range(rows - sum(chunk_sizes)):
            chunk_sizes[i + 1] += 1
        chunk_sizes = chunk_sizes if self.first_rows else chunk_sizes[1:]

        def scatter_map(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return Scatter.apply(device_ids, chunk_sizes, self.dim, value)
            if isinstance(value, (tuple, list)) and value:
                return list(zip(*map(scatter_map, value), strict=False))
            if isinstance(value, dict) and value:
                return [dict(i) for i in zip(*map(scatter_map, value.items()), strict=False)]
            return [value for _ in device_ids]

        parts = scatter_map(inputs)
        named = scatter_map(kwargs) if kwargs else [{} for _ in parts]
        return tuple(parts), tuple(named)


class Ungathered(nn.DataParallel):
    """Leaves its outputs where they are."""

    def gather(self, outputs: Any, output_device: Any) -> Any:
        return outputs


class Criterion(nn.DataParallel):
    """Takes the outputs that `Ungathered` leaves, and deals out the targets only; threads as in torch's own code."""

    def forward(self, inputs: Any, *targets: Any, **kwargs: Any) -> Any:
        if not self.device_ids:
            return self.module(inputs, *targets, **kwargs)
        targets, kwargs = self.scatter(targets, kwargs, self.device_ids)
        if len(self.device_ids) == 1:
            return self.module(inputs, *targets[0], **kwargs[0])
        raise AssertionError("threads would be started here")


class Reporting(nn.DataParallel):
    """Passes attributes of the module on, and tells its replicas who they are."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)

    def replicate(self, module: Any, device_ids: Any) -> Any:
        replicas = super().replicate(module, device_ids)
        for number, replica in enumerate(replicas):
            replica.number = number
        return replicas


def check_subclasses() -> None:
    kinds: dict[str, Any] = {
        "balanced": lambda m: Balanced(1, m, device_ids=[0, 1, 2]),
        "nothing for the first": lambda m: Balanced(0, m, device_ids=[0, 1, 2]),
        "balanced by default": lambda m: Balanced(5, m, device_ids=[0, 1, 2]),
        "ungathered": lambda m: Ungathered(m, device_ids=[0, 1]),
        "reporting": lambda m: Reporting(m, device_ids=[0, 1]),
        "without ids": lambda m: Balanced(1, m),
    }
    for name, wrap in kinds.items():
        for rows in (12, 7):
            x, y = batch(rows)
            for number, xs in enumerate(given(x)):
                with case((name, rows, number)):
                    ours, truth = twins(Normed)
                    model = wrap(ours)
                    criterion = Criterion(nn.CrossEntropyLoss(), device_ids=[0, 1])
                    expected = fit(truth, x, y, flag=True)
                    got = train(model, lambda m=model, c=criterion, xs=xs, y=y: c(m(xs, flag=True), y), lr=0.01)
                    same(got, expected, "losses", scale=10)
                    same_weights(ours, truth, scale=10)


def check_a_subclass_inside_another_module() -> None:
    x, y = batch(7)
    for wrap in (lambda m: nn.DataParallel(m, [0, 1]), lambda m: Balanced(1, m, device_ids=[0, 1, 2])):
        for xs in given(x):
            ours, truth = twins(lambda: nn.Sequential(nn.Linear(4, 4), Normed()))
            ours[1] = wrap(ours[1])
            F.cross_entropy(ours(xs), y).backward()
            F.cross_entropy(truth(x), y).backward()
            same([p.grad for p in ours.parameters()], [p.grad for p in truth.parameters()], "gradients", scale=10)


# ---------------------------------------------------------------------- the wrapper as an object
def check_the_wrapper_is_torchs() -> None:
    ours = net()
    for kind in (nn.DataParallel, nn.parallel.DataParallel, samestep.DataParallel):
        model = kind(ours, device_ids=[0, 1], output_device=1, dim=0)
        true(isinstance(model, nn.DataParallel) and hasattr(model, "module"), "class")
        same([model.device_ids, model.output_device, model.dim], [[0, 1], 1, 0], "attributes")
        true(model.module is ours, "module")
        same(list(model.state_dict()), [f"module.{key}" for key in ours.state_dict()], "keys")
        model.load_state_dict({f"module.{key}": value for key, value in ours.state_dict().items()})
        buffer = io.BytesIO()
        torch.save(model, buffer)
        true(b"samestep.parallel" not in buffer.getvalue(), "the file names Samestep's class")
        buffer.seek(0)
        for twin in (torch.load(buffer, weights_only=False), pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
            true(isinstance(twin, nn.DataParallel), "class of the copy")
            same([twin.device_ids, twin.dim], [[0, 1], 0], "attributes of the copy")
            same_weights(twin, model)
            same(twin(data()[0]), ours(data()[0]), "output of the copy")
    true(type(pickle.loads(pickle.dumps(samestep.DataParallel(ours)))) is nn.DataParallel, "pickled class")
    true(type(copy.deepcopy(samestep.DataParallel(ours))) is samestep.DataParallel, "copied class")
    same(nn.DataParallel(ours).device_ids, [], "device_ids without GPUs")


def check_averaged_models() -> None:
    x, y = batch(7)

    def loop(model: Any, xs: torch.Tensor) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        average = torch.optim.swa_utils.AveragedModel(model)
        slow = copy.deepcopy(model)
        for _ in range(3):
            optimizer.zero_grad()
            (F.cross_entropy(model(xs), y) + F.mse_loss(model(xs), slow(xs).detach())).backward()
            optimizer.step()
            average.update_parameters(model)
            with torch.no_grad():
                for kept, p in zip(slow.parameters(), model.parameters(), strict=True):
                    kept.lerp_(p, 0.1)
        torch.optim.swa_utils.update_bn([xs, xs], average)
        return [average(xs), slow(xs), model(xs)]

    for xs in given(x):
        ours, truth = twins(Normed)
        same(loop(nn.DataParallel(ours), xs), loop(truth, x), "outputs", scale=30)


def check_wrapped_again_at_every_step() -> None:
    x, y = batch(7)
    for xs in given(x):
        ours, truth = twins(Normed)
        got = fit(ours, xs, y, lambda x, m=ours: nn.DataParallel(m)(x))
        same(got, fit(truth, x, y), "losses", scale=10)
        same_weights(ours, truth, scale=10)


def check_a_wrapped_part_and_a_wrapped_criterion() -> None:
    x, y = batch(7)
    for rows in (7, 2, 1):
        for xs in given(x[:rows]):
            ours, truth = twins(net)
            ours[0] = nn.DataParallel(ours[0], [0, 1])
            criterion = nn.DataParallel(nn.CrossEntropyLoss(), [0, 1])
            got, expected = criterion(ours(xs), y[:rows]), F.cross_entropy(truth(x[:rows]), y[:rows])
            same(got.mean(), expected, "loss")
            got.mean().backward()
            expected.backward()
            same([p.grad for p in ours.parameters()], [p.grad for p in truth.parameters()], "gradients")


def check_double_backward_through_the_wrapper() -> None:
    x, y = batch(7)

    def step(model: Any, xs: torch.Tensor) -> Any:
        xs = xs.detach().requires_grad_()
        out = model(xs)
        (slope,) = torch.autograd.grad(out.sum(), xs, create_graph=True)
        penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
        (F.cross_entropy(out, y) + penalty).backward()
        return penalty

    for xs in given(x):
        ours, truth = twins(net)
        same(step(nn.DataParallel(ours, [0, 1]), xs), step(truth, x), "penalty")
        same_gradients(ours, truth)


# ---------------------------------------------------------------------- accumulation without communication
def check_no_sync() -> None:
    x, y = batch(12)
    bounds = ((0, 4), (4, 9), (9, 12))

    def loop(model: Any, quiet: Any, last_too: bool) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        norms = []
        for _ in range(2):
            optimizer.zero_grad()
            for number, (start, stop) in enumerate(bounds):
                context = quiet() if last_too or number < len(bounds) - 1 else contextlib.nullcontext()
                with context:
                    xs, ys = samestep.shard(x[start:stop]), samestep.shard(y[start:stop])
                    (F.cross_entropy(model(xs), ys, reduction="sum") / 12).backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
            optimizer.step()
        return norms

    for last_too in (False, True):
        with case(last_too):
            ours, truth = twins(net)
            model = nn.DataParallel(ours)
            expected = []
            optimizer = torch.optim.SGD(truth.parameters(), 0.1, momentum=0.9)
            for _ in range(2):
                optimizer.zero_grad()
                F.cross_entropy(truth(x), y).backward()
                expected.append(float(torch.nn.utils.clip_grad_norm_(truth.parameters(), 0.5)))
                optimizer.step()
            same(loop(model, model.no_sync, last_too), expected, "norms")
            same_weights(ours, truth)


def check_no_sync_saves_communication() -> None:
    from samestep.ledger import LEDGER

    x, y = batch(12)
    ours, truth = twins(net)
    model = nn.DataParallel(ours)

    def backward() -> int:
        before = LEDGER.reduced_bytes
        F.cross_entropy(model(samestep.shard(x)), samestep.shard(y)).backward()
        return LEDGER.reduced_bytes - before

    usual = backward()
    with model.no_sync():
        true(backward() == 0, "bytes sent within no_sync")
        true(backward() == 0, "bytes sent within no_sync")
    true(backward() == usual, "one sum for all")
    for _ in range(4):
        F.cross_entropy(truth(x), y).backward()
    same_gradients(ours, truth)


def check_no_sync_read_in_between() -> None:
    x, y = batch(7)
    ours, truth = twins(net)
    model = nn.DataParallel(ours)
    other = nn.Linear(4, 1)
    with model.no_sync():
        F.cross_entropy(model(samestep.shard(x)), y).backward()
        other(samestep.shard(x)).sum().backward()  # another model's sums are not held back
        F.cross_entropy(truth(x), y).backward()
        same_gradients(ours, truth, "read within")
        F.cross_entropy(model(samestep.shard(x)), y).backward()
        sum((p**2).sum() for p in ours.parameters()).backward()
    F.cross_entropy(truth(x), y).backward()
    sum((p**2).sum() for p in truth.parameters()).backward()
    same(other.weight.grad, x.sum(0, keepdim=True), "another model")
    same_gradients(ours, truth, "read after")
    with model.no_sync():
        F.cross_entropy(model(samestep.shard(x)), y).backward()
    model.zero_grad()
    truth.zero_grad()
    F.cross_entropy(model(samestep.shard(x)), y).backward()
    F.cross_entropy(truth(x), y).backward()
    same_gradients(ours, truth, "after zero_grad")


def check_distributed_data_parallel_is_refused() -> None:
    try:
        nn.parallel.DistributedDataParallel(net())
    except samestep.SamestepError as error:
        text = str(error)
        true("remove DistributedDataParallel" in text and "init_process_group" in text, text)
    else:
        true(False, "not refused")
    true(not torch.distributed.is_initialized() and world().size > 1, "no process group for the script")
