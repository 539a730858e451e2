"""Writing into global tensors and their aliases, and writing sharded values into whole ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import samestep
from inside.claims import case, patterns, same, shards

ROWS = 7


def _data() -> torch.Tensor:
    torch.manual_seed(41)
    return torch.randn(ROWS, 4)


def _write(x: torch.Tensor, index: Any, value: Any) -> None:
    x[index] = value


#: Each changes its argument and may return something; both must be those of one device.
WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "+= number": lambda x: x.__iadd__(1),
    "+= itself": lambda x: x.__iadd__(x),
    "-= row": lambda x: x.__isub__(torch.arange(4.0)),
    "-= mean": lambda x: x.__isub__(x.mean(0)),
    "*= column": lambda x: x.__imul__(x[:, :1].clone()),
    "/= sum": lambda x: x.__itruediv__(x.sum()),
    "/= whole": lambda x: x.__itruediv__(torch.full((ROWS, 4), 2.0)),
    "**= 2": lambda x: x.__ipow__(2),
    "//= 2": lambda x: x.__ifloordiv__(2),
    "%= 2": lambda x: x.__imod__(2),
    "add_": lambda x: x.add_(x, alpha=2),
    "sub_": lambda x: x.sub_(x.max()),
    "mul_": lambda x: x.mul_(torch.arange(float(ROWS)).view(-1, 1)),
    "div_": lambda x: x.div_(x.norm()),
    "addcmul_": lambda x: x.addcmul_(x.detach().clone(), torch.ones(4), value=0.5),
    "clamp_": lambda x: x.clamp_(-0.5, 0.5),
    "clamp_ whole": lambda x: x.clamp_(max=torch.zeros(ROWS, 4)),
    "relu_": lambda x: F.relu_(x),
    "relu inplace": lambda x: F.relu(x, inplace=True),
    "leaky inplace": lambda x: F.leaky_relu(x, 0.1, inplace=True),
    "dropout off inplace": lambda x: F.dropout(x, 0.5, False, True),
    "sigmoid_": lambda x: x.sigmoid_(),
    "abs_ sqrt_": lambda x: x.abs_().sqrt_(),
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(3),
    "copy_ whole": lambda x: x.copy_(torch.arange(4.0 * ROWS).view(ROWS, 4)),
    "copy_ row": lambda x: x.copy_(torch.arange(4.0)),
    "copy_ double": lambda x: x.copy_((x * 2).double()),
    "masked_fill_": lambda x: x.masked_fill_(x > 0, 9),
    "masked_fill_ whole": lambda x: x.masked_fill_(torch.arange(ROWS).view(-1, 1) > 3, 9),
    "masked_fill_ tensor": lambda x: x.masked_fill_(x > 0, torch.tensor(9.0)),
    "masked_scatter_": lambda x: x.masked_scatter_(x > 0, torch.arange(30.0)),
    "round_": lambda x: x.round_(),
    "neg_": lambda x: x.neg_(),
    "cumsum_ 0": lambda x: x.cumsum_(0),
    "cumsum_ 1": lambda x: x.cumsum_(1),
    "index_fill_": lambda x: x.index_fill_(0, torch.tensor([0, 5]), -1.0),
    "index_fill_ 1": lambda x: x.index_fill_(1, torch.tensor([0, 3]), -1.0),
    "index_copy_": lambda x: x.index_copy_(0, torch.tensor([6, 0]), torch.ones(2, 4)),
    "index_add_": lambda x: x.index_add_(0, torch.tensor([6, 0, 6]), torch.ones(3, 4)),
    "index_put_": lambda x: x.index_put_((torch.tensor([1, 5]), torch.tensor([0, 2])), torch.tensor([7.0, 8.0])),
    "index_put_ accumulate": lambda x: x.index_put_((torch.tensor([1, 1]),), torch.tensor(1.0), accumulate=True),
    "scatter_": lambda x: x.scatter_(1, x.argmax(1, keepdim=True), 100.0),
    "scatter_ 0": lambda x: x.scatter_(0, torch.tensor([[0, 6, 1, 2]]), 100.0),
    "scatter_add_": lambda x: x.scatter_add_(0, torch.zeros(ROWS, 4, dtype=torch.int64), x.clone()),
    "tril_": lambda x: x.tril_(),
    "fill_diagonal_": lambda x: x.fill_diagonal_(5),
    "renorm_": lambda x: x.renorm_(2, 0, 1.0),
    "put_": lambda x: x.put_(torch.tensor([0, 27]), torch.tensor([1.0, 2.0])),
    "lerp_": lambda x: x.lerp_(torch.ones(ROWS, 4), 0.5),
    "swap rows": lambda x: _write(x, torch.tensor([0, 6]), x[torch.tensor([6, 0])]),
    "[mask] = 0": lambda x: _write(x, x > 0, 0),
    "[mask] = tensor": lambda x: _write(x, x > 0, torch.tensor(7.0)),
    "[mask] = values": lambda x: _write(x, x > 0, x[x > 0] * 2),
    "[row mask] = 0": lambda x: _write(x, x[:, 0] > 0, 0.0),
    "[row mask] = row": lambda x: _write(x, x[:, 0] > 0, torch.arange(4.0)),
    "[row mask, 1] = 0": lambda x: _write(x, (x[:, 0] > 0, 1), 0.0),
    "[whole mask] = 0": lambda x: _write(x, torch.arange(ROWS) % 2 == 0, 0),
    "[0] = 0": lambda x: _write(x, 0, 0),
    "[-1] = row": lambda x: _write(x, -1, torch.arange(4.0)),
    "[2, 1] = 5": lambda x: _write(x, (2, 1), 5),
    "[:, 0] = 0": lambda x: _write(x, (slice(None), 0), 0),
    "[:, 0] = column": lambda x: _write(x, (slice(None), 0), x[:, 1]),
    "[:, 0] = whole": lambda x: _write(x, (slice(None), 0), torch.arange(float(ROWS))),
    "[:, 1:3] = wider": lambda x: _write(x, (slice(None), slice(1, 3)), x[:, :1]),
    "[..., 0] = 0": lambda x: _write(x, (..., 0), 0),
    "[1:4] = 0": lambda x: _write(x, slice(1, 4), 0),
    "[1:4] = rows": lambda x: _write(x, slice(1, 4), x[4:7]),
    "[1:4] = whole": lambda x: _write(x, slice(1, 4), torch.ones(3, 4)),
    "[1:4] = row": lambda x: _write(x, slice(1, 4), torch.arange(4.0)),
    "[1:4] = one row": lambda x: _write(x, slice(1, 4), torch.ones(1, 4)),
    "[1:4] = sum": lambda x: _write(x, slice(1, 4), x.sum(0)),
    "[::2] = 0": lambda x: _write(x, slice(None, None, 2), 0),
    "[:] = 0": lambda x: _write(x, slice(None), 0),
    "[:] = one row of it": lambda x: _write(x, slice(None), x[:1]),
    "[list] = 1": lambda x: _write(x, [0, 3], 1),
    "[index] = rows": lambda x: _write(x, torch.tensor([0, 3]), torch.ones(2, 4)),
    "[arange, argmax] = 0": lambda x: _write(x, (torch.arange(ROWS), x.argmax(1)), 0.0),
    "[None] = 0": lambda x: _write(x, None, 0),
    "[()] = 2": lambda x: _write(x, (), 2),
    "[True] = 2": lambda x: _write(x, True, 2),
    "[:, 0].zero_()": lambda x: x[:, 0].zero_(),
    "[:, 0] += 1": lambda x: x[:, 0].add_(1),
    "[2:5].mul_(2)": lambda x: x[2:5].mul_(2),
    "[:].neg_()": lambda x: x[:].neg_(),
    "view write": lambda x: x.view(-1)[5:9].fill_(1),
    "view(…) write": lambda x: x.view(-1, 2, 2)[:, 0].zero_(),
    "t write": lambda x: x.t()[0].zero_(),
    "narrow write": lambda x: x.narrow(1, 0, 2).zero_(),
    "select write": lambda x: x.select(1, 0).zero_(),
    "unsqueeze write": lambda x: x.unsqueeze(0)[..., 1].zero_(),
    "chunk write": lambda x: x.chunk(2, 1)[1].zero_(),
    "unbind write": lambda x: x.unbind(1)[2].zero_(),
    "expand_as read": lambda x: x[:, :1].expand_as(x).add(1),
    "data.clamp_": lambda x: x.data.clamp_(0, 1),
    "data[:, 0] = ": lambda x: _write(x.data, (slice(None), 0), 4),
    "detach().zero_()": lambda x: x.detach().zero_(),
    "data += ": lambda x: x.data.add_(5),
    "out= itself": lambda x: torch.mul(x, 2, out=x),
    "out= of sum": lambda x: torch.add(x, torch.ones(4), out=x),
    "out= cumsum": lambda x: torch.cumsum(x, 0, out=x),
    "bernoulli_": lambda x: x.zero_().bernoulli_(0.5),
    "uniform_": lambda x: x.uniform_(),
    "normal_": lambda x: x.normal_(),
    "random_": lambda x: x.random_(5),
}


def check_writes_change_the_tensor_as_on_one_device() -> None:
    for name, write in WRITES.items():
        plain = _data()
        torch.manual_seed(1)
        returned = write(plain)
        for sizes, x in shards(_data()):
            with case((name, sizes)):
                torch.manual_seed(1)
                got = write(x)
                same(x, plain, "tensor")
                if returned is not None:
                    same(got, returned, "returned")


def check_writes_are_seen_after_the_value_was_looked_at() -> None:
    for name, write in WRITES.items():
        plain = _data()
        torch.manual_seed(1)
        write(plain)
        for sizes, x in shards(_data()):
            with case((name, sizes)):
                str(x)
                torch.manual_seed(1)
                write(x)
                same(x, plain, "tensor")
                same(x.sum(), plain.sum(), "sum")


def check_rows_are_aliases() -> None:
    """A row lives on one rank, so its alias must reach there; a refusal would do, a lost write would not."""
    for sizes, x in shards(_data()):
        with case(sizes):
            plain = _data()
            for t in (x, plain):
                t[0].zero_()
                t[-1].add_(1)
                t[2, 1].fill_(4)
            same(x, plain)


def check_rows_in_a_loop_are_aliases() -> None:
    for sizes, x in shards(_data()):
        with case(sizes):
            plain = _data()
            for t in (x, plain):
                for row in t:
                    row.mul_(2)
            same(x, plain)


def check_views_made_before_a_write_see_it() -> None:
    for sizes, x in shards(_data()):
        with case(sizes):
            plain = _data()
            pairs = []
            for t in (x, plain):
                views = [t.view(-1), t[:, 1], t.t(), t[2:6], t.detach(), t.data, t.unsqueeze(0), t.view(-1, 2, 2)]
                _ = [str(v) for v in views]
                t += 1
                t[:, 1] = 0
                t.view(-1)[3:8] = 9
                pairs.append(views)
            same(pairs[0], pairs[1])


def check_whole_tensors_take_sharded_values() -> None:
    for sizes, x in shards(_data()):
        plain = _data()
        steps: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
            "+= rows": lambda w, v: w.__iadd__(v),
            "+= sum": lambda w, v: w.__iadd__(v.sum()),
            "-= mean": lambda w, v: w.__isub__(v.mean(0)),
            "*= column": lambda w, v: w.__imul__(v[:, :1]),
            "add_": lambda w, v: w.add_(v, alpha=0.5),
            "copy_": lambda w, v: w.copy_(v),
            "[:] =": lambda w, v: _write(w, slice(None), v),
            "[2:5] =": lambda w, v: _write(w, slice(2, 5), v[2:5]),
            "[0] = row": lambda w, v: _write(w, 0, v[3]),
            "[mask] =": lambda w, v: _write(w, v > 0, 0.0),
            "[mask] = values": lambda w, v: _write(w, v > 0, v[v > 0]),
            "[index] =": lambda w, v: _write(w, v[:, 0].argsort(), v),
            "[0, 0] = mean": lambda w, v: _write(w, (0, 0), v.mean()),
            "masked_fill_": lambda w, v: w.masked_fill_(v > 0, 3),
            "scatter_": lambda w, v: w.scatter_(1, v.argmax(1, keepdim=True), 2.0),
            "index_add_": lambda w, v: w.index_add_(0, v.argmax(1), v),
            "out=": lambda w, v: torch.mul(v, 2, out=w),
            "out= sum": lambda w, v: torch.sum(v, 1, keepdim=True, out=w.new_empty(ROWS, 1)),
            "fill_": lambda w, v: w.fill_(v.max()),
            "lerp_": lambda w, v: w.lerp_(v, 0.1),
            "baddbmm": lambda w, v: w.addmm_(v, torch.ones(4, 4)),
        }
        for name, step in steps.items():
            with case((name, sizes)):
                ours, truth = torch.ones(ROWS, 4), torch.ones(ROWS, 4)
                alias = ours[:]
                got, expected = step(ours, x), step(truth, plain)
                same(ours, truth, "tensor")
                same(alias, truth, "alias")
                if expected is not None:
                    same(got, expected, "returned")


def _backward(value: torch.Tensor, leaf: torch.Tensor) -> list[Any]:
    (value * torch.linspace(0.5, 2, value.numel()).view(value.shape)).sum().backward()
    return [value.detach(), leaf.grad]


def check_in_place_writes_have_the_plain_gradient() -> None:
    def double_the_columns(t: torch.Tensor) -> torch.Tensor:
        t[:, 1] = t[:, 0] * 3
        return t

    def mask(t: torch.Tensor) -> torch.Tensor:
        t[t > 0] = 0
        return t

    def rows(t: torch.Tensor) -> torch.Tensor:
        t[1:4] = t[4:7] * 2
        return t

    def row(t: torch.Tensor) -> torch.Tensor:
        t[0] = t[5] * 2
        return t

    def view(t: torch.Tensor) -> torch.Tensor:
        t.view(-1)[4:9].mul_(3)
        return t

    def into_whole(t: torch.Tensor) -> torch.Tensor:
        memory = torch.zeros(ROWS, 4)
        memory[:, 1:] = t[:, 1:]
        memory += t.sum(0)
        return memory

    def gathered(t: torch.Tensor) -> torch.Tensor:
        t.index_add_(0, torch.tensor([0, 6]), t[2:4] * 2)
        return t

    ways: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: t.add_(t.detach()).mul_(2),
        lambda t: t.mul_(2).add_(t.detach().sum()).sigmoid_(),
        lambda t: F.relu(t, inplace=True),
        lambda t: t.cumsum_(0),
        lambda t: t.sub_(t.mean(0)),
        lambda t: t.__itruediv__(t.detach().norm()),
        lambda t: t.masked_fill_(t > 0, 0.0),
        double_the_columns,
        mask,
        rows,
        row,
        view,
        into_whole,
        gathered,
    ]
    for number, way in enumerate(ways):
        plain = _data().requires_grad_()
        truth = _backward(way(plain * 1.5), plain)
        for sizes in patterns(ROWS):
            with case((number, getattr(way, "__name__", ""), sizes)):
                leaf = _data().requires_grad_()
                same(_backward(way(samestep.shard(leaf, 0, sizes) * 1.5), leaf), truth)


def check_leaves_cannot_be_written_while_tracked() -> None:
    for sizes, x in shards(_data()):
        with case(sizes):
            x.requires_grad_()
            refused = False
            try:
                x += 1
            except RuntimeError:
                refused = True
            same(refused, True, "in-place on a leaf must raise, as on one device")
            with torch.no_grad():
                x += 1
            same(x.detach(), _data() + 1)


def check_parameters_take_sharded_values_as_data_and_gradient() -> None:
    """In a file's last check, since a rank died of it: torch does not ask the value that is assigned."""
    for sizes, x in shards(_data()):
        with case(sizes):
            parameter = torch.nn.Parameter(torch.zeros(ROWS, 4))
            parameter.grad = x * 2
            same(parameter.grad, _data() * 2, "grad")
            parameter.data = x
            same(parameter.detach() + 1, _data() + 1, "data")
            parameter.data = x.sum(0)
            same(parameter.detach() + 1, _data().sum(0) + 1, "data of a sum")
