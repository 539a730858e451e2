"""`nn.DataParallel` in every form that scripts use: the numbers of one device, the shapes that its scripts expect."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import threading
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import data_parallel, gather, parallel_apply, replicate, scatter
from torch.nn.parallel._functions import Scatter

import samestep
from inside.claims import case, raises, same, same_gradients, same_weights, true, twins, world
from inside.training import data, net, train

#: Rows of a batch: even, uneven, one for each of some ranks, a single one.
BATCHES = (12, 7, 2, 1)


def batch(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`rows` rows of 4 numbers, and their classes of 3."""
    torch.manual_seed(90 + rows)
    return torch.randn(rows, 4), torch.randint(0, 3, (rows,))


def given(tensor: torch.Tensor) -> list[torch.Tensor]:
    """A batch as a script may hold it: whole, and as a `DataLoader` gives it."""
    return [tensor.clone(), samestep.shard(tensor.clone())]


def fit(module: nn.Module, x: torch.Tensor, y: torch.Tensor, forward: Any = None, **kwargs: Any) -> list[float]:
    """A few steps of classifying what `forward` (else the module) gives for `x`; the losses."""
    call = forward or module
    return train(module, lambda: F.cross_entropy(call(x, **kwargs), y), lr=0.01)


class Loss(nn.Module):
    """A module that returns its loss, in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.net, self.way = net(), way

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        logits = self.net(x)
        if self.way == "token mean":
            return F.cross_entropy(logits, torch.where(x[:, 0] > 0, y, -100))
        if self.way == "coupled":
            return ((logits @ logits.t()) ** 2).mean()
        if self.way == "mean and hits":
            return F.cross_entropy(logits, y), (logits.argmax(1) == y).sum()
        if self.way == "unsqueezed":
            return F.cross_entropy(logits, y).unsqueeze(0)
        if self.way == "dict":
            return {"loss": F.cross_entropy(logits, y), "logits": logits, "none": None}
        return F.cross_entropy(logits, y, reduction=self.way)


def check_scalars_become_one_entry_per_device() -> None:
    for way in ("mean", "token mean", "coupled", "unsqueezed"):
        for rows in BATCHES:
            x, y = batch(rows)
            if way == "token mean" and not bool((x[:, 0] > 0).any()):
                continue
            if way == "unsqueezed" and rows == 1:
                continue  # one row of one number, as far as anybody can tell; nn.DataParallel returns one entry, too
            for number, (xs, ys) in enumerate(zip(given(x), given(y), strict=True)):
                with case((way, rows, number)):
                    ours, truth = twins(lambda way=way: Loss(way))
                    model = nn.DataParallel(ours, device_ids=[0, 1, 2])
                    expected, got = truth(x, y), model(xs, ys)
                    true(got.shape == (3,), f"shape {tuple(got.shape)}")
                    same(got.mean(), expected.mean(), "mean")
                    same(got.sum() / 3, expected.mean(), "sum over devices")
                    same(got[0], expected.mean(), "first entry")
                    same(max(v.item() for v in got), expected.item(), "largest entry")
                    got.mean().backward()
                    expected.mean().backward()
                    same_gradients(ours, truth)


def check_summed_scalars() -> None:
    for rows in BATCHES[:3]:
        x, y = batch(rows)
        for number, (xs, ys) in enumerate(zip(given(x), given(y), strict=True)):
            with case((rows, number)):
                ours, truth = twins(lambda: Loss("sum"))
                model = nn.DataParallel(ours, device_ids=[0, 1])
                expected, got = truth(x, y), model(xs, ys)
                true(got.shape == (2,), f"shape {tuple(got.shape)}")
                same(got.sum(), expected, "sum")
                got.sum().backward()
                expected.backward()
                same_gradients(ours, truth)
                ours, truth = twins(lambda: Loss("mean and hits"))
                model = nn.DataParallel(ours, device_ids=[0, 1])
                for _ in range(3):
                    loss, hits = model(xs, ys)
                    expected_loss, expected_hits = truth(x, y)
                    same(hits.sum(), expected_hits, "number of hits")
                    same(hits.dtype, expected_hits.dtype, "dtype")
                    same(loss.mean(), expected_loss, "loss")


def check_a_scalar_used_as_one_devices() -> None:
    """A script that was only ever run on one device calls `backward` and `item` on what the wrapper returns."""
    x, y = batch(7)
    for ids in (None, [0], [0, 1], [0, 1, 2]):
        for xs, ys in zip(given(x), given(y), strict=True):
            with case(ids):
                ours, truth = twins(lambda: Loss("mean"))
                model = nn.DataParallel(ours, device_ids=ids)
                got, expected = model(xs, ys), truth(x, y)
                true(got.dim() == (ids is not None and len(ids) > 1), f"{got.dim()} dimensions")
                same([got.item(), float(got)], [expected.item()] * 2, "value")
                same(f"{got:.3f}", f"{expected:.3f}", "printed")
                got.backward()
                expected.backward()
                same_gradients(ours, truth)
                got = model(xs, ys)
                got /= 2
                same(got.mean() * 2, expected, "changed in place")
                if got.dim():
                    raises(RuntimeError, "backward of the changed vector", got.backward)


def check_outputs_of_every_form() -> None:
    for rows in BATCHES:
        x, y = batch(rows)
        for number, (xs, ys) in enumerate(zip(given(x), given(y), strict=True)):
            with case((rows, number)):
                ours, truth = twins(lambda: Loss("dict"))
                model = nn.DataParallel(ours, [0, 1], output_device=0)
                got, expected = model(xs, y=ys), truth(x, y)
                same(got["loss"].mean(), expected["loss"], "loss")
                same(got["logits"], expected["logits"], "logits")
                true(got["none"] is None, "None")


class Anchored(nn.Module):
    """Returns constants beside its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("anchors", torch.arange(5.0).view(1, 5))

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> Any:
        return self.layer(x) * scale, self.anchors, self.anchors * 2, "name"


def check_constants_are_returned_once() -> None:
    for rows in BATCHES:
        x = batch(rows)[0]
        for number, xs in enumerate(given(x)):
            with case((rows, number)):
                ours, truth = twins(Anchored)
                same(nn.DataParallel(ours, [0, 1])(xs, scale=2.0), truth(x, scale=2.0), "outputs")


class Recurrent(nn.Module):
    """Time-major: the rows are dimension 1."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(4, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0])


def check_time_major() -> None:
    for rows in (7, 3, 2, 1):
        torch.manual_seed(1)
        x, y = torch.randn(3, rows, 4), torch.randint(0, 3, (3, rows))
        for number, xs in enumerate((x, samestep.shard(x, 1))):
            with case((rows, number)):
                ours, truth = twins(Recurrent)
                model = nn.DataParallel(ours, [0, 1], dim=1)
                expected = fit(truth, x, y, lambda x, m=truth: m(x).transpose(1, 2))
                same(fit(model, xs, y, lambda x, m=model: m(x).transpose(1, 2)), expected, "losses")
                same(model(xs), truth(x), "outputs")
                same_weights(ours, truth)
                same(data_parallel(ours, xs, [0, 1], dim=1), truth(x), "the function")


def check_the_function() -> None:
    for rows in BATCHES:
        x, y = batch(rows)
        for number, (xs, ys) in enumerate(zip(given(x), given(y), strict=True)):
            with case((rows, number)):
                ours, truth = twins(lambda: Loss("mean"))
                got = data_parallel(ours, xs, device_ids=[0, 1], module_kwargs={"y": ys})
                same(got.mean(), truth(x, y), "loss")
                got = nn.parallel.data_parallel(ours, (xs, ys), range(2))
                got.mean().backward()
                truth(x, y).backward()
                same_gradients(ours, truth)
                net_ours, net_truth = twins(net)
                same(data_parallel(net_ours, xs), net_truth(x), "without ids")


class Normed(nn.Module):
    """Batch norm inside: several calls for several chunks would give other statistics than one device."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x: torch.Tensor, flag: bool = False) -> torch.Tensor:
        return self.layers(x) * (2.0 if flag else 1.0)


def by_hand(module: nn.Module, ids: list[int], x: torch.Tensor, flag: bool = True) -> torch.Tensor:
    """`data_parallel` as tutorials write it."""
    replicas = replicate(module, ids)
    inputs = scatter(x, ids)
    kwargs = scatter({"flag": flag}, ids)
    replicas, kwargs = replicas[: len(inputs)], kwargs[: len(inputs)]
    return gather(parallel_apply(replicas, inputs, kwargs), ids[0])


def check_the_steps_by_hand() -> None:
    for rows in (12, 7, 4):
        x, y = batch(rows)
        for ids in ([0, 1], [0, 1, 2, 3], [0]):
            for number, xs in enumerate(given(x)):
                with case((rows, ids, number)):
                    ours, truth = twins(Normed)
                    expected = fit(truth, x, y, flag=True)
                    got = fit(ours, xs, y, lambda x, m=ours, ids=ids: by_hand(m, ids, x))
                    same(got, expected, "losses", scale=10)
                    same_weights(ours, truth, scale=10)


def check_chunks_look_as_on_several_devices() -> None:
    for rows in (12, 7, 5, 1):
        x, y = batch(rows)
        for ids in ([0, 1], [0, 1, 2, 3]):
            with case((rows, ids)):
                for xs, ys in zip(given(x), given(y), strict=True):
                    chunks = scatter((xs, {"y": ys, "name": "n"}), ids)
                    expected = list(zip(x.chunk(len(ids)), y.chunk(len(ids)), strict=True))
                    same([(a, b["y"]) for a, b in chunks], expected, "chunks")
                    same([b["name"] for _, b in chunks], ["n"] * len(expected), "names")
                    same(gather([c[0] for c in chunks], 0), x, "gathered")
                    same(gather([c[0] * 2 for c in chunks], 0), x * 2, "changed and gathered")
                same(gather([torch.tensor(1.0), torch.tensor(3.0)], 0), torch.tensor([1.0, 3.0]), "scalars")
                same(gather([{"a": x, "b": None}] * 2, 0)["a"], torch.cat([x, x]), "dicts")


def check_outputs_left_ungathered() -> None:
    """A criterion that takes each device's output and its part of the targets."""
    for rows in (12, 7):
        x, y = batch(rows)
        for number, (xs, ys) in enumerate(zip(given(x), given(y), strict=True)):
            with case((rows, number)):
                ours, truth = twins(Normed)
                ids = [0, 1, 2]
                outputs = parallel_apply(replicate(ours, ids), scatter((xs,), ids))
                same([o.shape[0] for o in outputs], [c.size(0) for c in x.chunk(3)], "rows")
                losses = parallel_apply([nn.CrossEntropyLoss()] * 3, list(zip(outputs, scatter(ys, ids), strict=True)))
                loss = gather(losses, 0)
                true(loss.shape == (3,), "one loss per device")
                expected = F.cross_entropy(truth(x), y)
                same(loss.mean(), expected, "loss")
                (sum(losses) / len(losses)).backward()
                expected.backward()
                same_gradients(ours, truth, scale=10)


def check_replicas_called_one_by_one() -> None:
    x, y = batch(7)
    for xs in given(x):
        ours, truth = twins(net)
        replicas = replicate(ours, [0, 1])
        true(all(isinstance(r, nn.Sequential) for r in replicas), "types")
        outputs = [r(c) for r, c in zip(replicas, scatter(xs, [0, 1]), strict=True)]
        F.cross_entropy(torch.cat(outputs), y).backward()
        F.cross_entropy(truth(x), y).backward()
        same_gradients(ours, truth)
        changed = [c * 2 for c in scatter(xs, [0, 1])]
        same(gather(parallel_apply(replicate(ours, [0, 1]), changed), 0), truth(x * 2), "changed chunks")
    failed: list[type] = []

    def work(replica: nn.Module, chunk: torch.Tensor) -> None:
        try:
            replica(chunk)
        except Exception as error:
            failed.append(type(error))

    chunks = scatter(samestep.shard(x), [0, 1])
    threads = [threading.Thread(target=work, args=pair) for pair in zip(replicate(ours, [0, 1]), chunks, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    true(failed == [samestep.SamestepError] * 2, f"threads: {failed}")


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
