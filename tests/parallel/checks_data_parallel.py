"""`nn.DataParallel` in every form that scripts use: the numbers of one device, the shapes that its scripts expect."""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import data_parallel, gather, parallel_apply, replicate, scatter

import samestep
from inside.claims import case, raises, same, same_gradients, same_weights, true, twins
from inside.training import net
from inside.wrapped import BATCHES, Normed, batch, fit, given


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
