"""What scripts do with batches and outputs outside the model: equal to plain, and the cheap things gather nothing.

The list is that of the operations found in 68 repositories written for `nn.DataParallel`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import samestep
from inside.claims import case, gathers, patterns, same, shards, true

#: Operations on a (rows, 4) tensor of reals that must work on the rows where they are.
CHEAP: dict[str, Callable[[torch.Tensor], Any]] = {
    "+": lambda x: x + x * 2 - x / 3,
    "+ number": lambda x: 1 + x - 2.5,
    "+ vector": lambda x: x + torch.arange(4.0),
    "* column": lambda x: x * x[:, :1],
    "- row mean": lambda x: x - x.mean(1, keepdim=True),
    "row sum": lambda x: x.sum(1),
    "row max": lambda x: x.max(1),
    "row max values": lambda x: x.max(dim=1)[0],
    "row max, unpacked": lambda x: [*torch.max(x, 1)],
    "argmax": lambda x: x.argmax(dim=1),
    "argmax keepdim": lambda x: x.argmax(1, keepdim=True),
    "argmax of data": lambda x: x.data.max(1, keepdim=True)[1],
    "topk": lambda x: x.topk(2, 1, True, True),
    "topk t": lambda x: x.topk(2, 1, True, True)[1].t(),
    "topk eq": lambda x: x.topk(2, 1)[1].t().eq(x.argmax(1).view(1, -1).expand_as(x.topk(2, 1)[1].t())),
    "cosine similarity": lambda x: F.cosine_similarity(x, x * 2 + 1),
    "pairwise distance": lambda x: F.pairwise_distance(x, x * 2, keepdim=True),
    "softmax": lambda x: F.softmax(x, dim=1),
    "softmax -1": lambda x: x.softmax(-1),
    "log_softmax": lambda x: torch.log_softmax(x, 1),
    "sigmoid": lambda x: torch.sigmoid(x),
    "round": lambda x: x.sigmoid().round(),
    "tanh": lambda x: torch.tanh(x),
    "relu": lambda x: F.relu(x),
    "leaky": lambda x: F.leaky_relu(x, 0.2),
    "softplus": lambda x: F.softplus(-x),
    "exp": lambda x: x.exp().log().abs().sqrt().sign(),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp min": lambda x: x.clamp(min=0),
    "pow": lambda x: x.pow(2) + x**3,
    "neg": lambda x: x.neg(),
    "%": lambda x: (x * 10) % 3,
    "//": lambda x: (x * 10) // 3,
    "floor": lambda x: x.floor(),
    "<": lambda x: (x < 0) & (x > -1) | ~(x != x),
    "gt": lambda x: x.gt(0.5),
    "ge le ne": lambda x: (x.ge(0), x.le(0), x.ne(0), x.lt(0), x.eq(0)),
    "where": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "where number": lambda x: torch.where(x > 0, x, 0.0),
    "float": lambda x: (x > 0).float(),
    "long": lambda x: (x * 3).long(),
    "half": lambda x: x.half().float(),
    "int": lambda x: x.int(),
    "to": lambda x: x.to(torch.float64),
    "to device": lambda x: x.to("cpu"),
    "to device and dtype": lambda x: x.to(torch.device("cpu"), torch.float64, non_blocking=True),
    "type": lambda x: x.type(torch.FloatTensor),
    "type_as": lambda x: (x > 0).type_as(x),
    "cpu": lambda x: x.cpu(),
    "view": lambda x: x.view(-1),
    "view rows": lambda x: x.view(x.size(0), -1),
    "view 2": lambda x: x.view(x.size(0), 2, 2),
    "view merge": lambda x: x.view(-1, 2),
    "reshape": lambda x: x.reshape(len(x), 1, 4),
    "flatten": lambda x: x.unsqueeze(1).flatten(1),
    "squeeze": lambda x: x[:, 0:1].squeeze(1),
    "squeeze -1": lambda x: x[:, 0:1].squeeze(-1),
    "squeeze all": lambda x: x.unsqueeze(1).unsqueeze(3).squeeze(),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "transpose": lambda x: x.transpose(0, 1),
    "t": lambda x: x.t(),
    "T": lambda x: x.T,
    "permute": lambda x: x.unsqueeze(2).permute(0, 2, 1),
    "contiguous": lambda x: x.t().contiguous(),
    "expand": lambda x: x.unsqueeze(1).expand(-1, 3, -1),
    "expand_as": lambda x: x[:, :1].expand_as(x),
    "repeat": lambda x: x.repeat(1, 2),
    "stack": lambda x: torch.stack([x, x], 1),
    "cat 1": lambda x: torch.cat([x, x * 2], 1),
    "cat -1": lambda x: torch.cat((x, x), dim=-1),
    "chunk": lambda x: x.chunk(2, 1),
    "chunk dim": lambda x: torch.chunk(x, 2, dim=1),
    "split": lambda x: x.split(2, 1),
    "split list": lambda x: torch.split(x, [1, 3], dim=1),
    "unbind": lambda x: x.unbind(1),
    "[:, 0]": lambda x: x[:, 0],
    "[:, -1]": lambda x: x[:, -1],
    "[:, 1:3]": lambda x: x[:, 1:3],
    "[..., 0]": lambda x: x[..., 0],
    "[:, None]": lambda x: x[:, None],
    "[:, ::2]": lambda x: x[:, ::2],
    "[2:7]": lambda x: x[2:7],
    "[:-1]": lambda x: x[:-1],
    "[-3:]": lambda x: x[-3:],
    "[:, [0, 2]]": lambda x: x[:, [0, 2]],
    "[:]": lambda x: x[:],
    "select": lambda x: x.select(1, 2),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "gather": lambda x: x.gather(1, x.argmax(1, keepdim=True)),
    "gather label": lambda x: x.gather(1, (x[:, 0] > 0).long().view(-1, 1)).squeeze(1),
    "index_select": lambda x: x.index_select(1, torch.tensor([0, 3])),
    "zeros_like": lambda x: torch.zeros_like(x) + torch.ones_like(x),
    "full_like": lambda x: torch.full_like(x, 0.9),
    "sort": lambda x: x.sort(1, descending=True),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(1),
    "norm": lambda x: x.norm(dim=1),
    "norm p": lambda x: torch.norm(x, p=2, dim=1, keepdim=True),
    "normalize": lambda x: F.normalize(x, dim=1),
    "normalize default": lambda x: F.normalize(x),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x + 1),
    "pairwise_distance": lambda x: F.pairwise_distance(x, x + 1),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "std": lambda x: x.std(1),
    "std False": lambda x: x.std(1, False),
    "var": lambda x: x.var(1, unbiased=False),
    "isnan": lambda x: torch.isnan(x),
    "any": lambda x: (x > 1).any(1),
    "all": lambda x: (x > -9).all(dim=1),
    "matmul": lambda x: x @ torch.ones(4, 3),
    "mm": lambda x: torch.mm(x, torch.ones(4, 3)),
    "matvec": lambda x: torch.matmul(x, torch.ones(4)),
    "bmm": lambda x: torch.bmm(x.view(-1, 2, 2), x.view(-1, 2, 2)),
    "linear": lambda x: F.linear(x, torch.ones(3, 4), torch.ones(3)),
    "one_hot": lambda x: F.one_hot(x.argmax(1), 4),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0),
    "clone": lambda x: x.clone().detach(),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "size": lambda x: [x.size(), x.shape, x.size(0), x.dim(), x.numel(), len(x), x.nelement(), x.ndim],
    "facts": lambda x: [x.dtype, x.is_cuda, str(x.device), x.is_floating_point(), x.requires_grad, x.type()],
    "new": lambda x: x.new_zeros(3),
    "new size": lambda x: x.new_ones(x.size(0), 2),
    "interpolate": lambda x: F.interpolate(x.view(-1, 1, 2, 2), scale_factor=2, mode="nearest"),
    "pool": lambda x: F.max_pool2d(x.view(-1, 1, 2, 2), 2),
    "avgpool": lambda x: F.adaptive_avg_pool2d(x.view(-1, 1, 2, 2), 1),
    "pad": lambda x: F.pad(x, (1, 1)),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "dropout off": lambda x: F.dropout(x, 0.5, training=False),
    "scatter": lambda x: torch.zeros(len(x), 4).scatter_(1, x.argmax(1, keepdim=True).cpu(), 1.0),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.5),
    "max of two": lambda x: torch.max(x, -x),
    "min of two": lambda x: torch.min(x, x * 2),
    "einsum": lambda x: torch.einsum("nd,nd->n", x, x),
    "einsum weights": lambda x: torch.einsum("nd,dk->nk", x, torch.ones(4, 3)),
}
#: In `CHEAP` for their values, but known to gather: to be struck off when a rule takes them.
NOT_CHEAP_YET = {"scatter"}

#: Operations over the rows: they may gather, and must be right.
GLOBAL: dict[str, Callable[[torch.Tensor], Any]] = {
    "index": lambda x: x[3],
    "index -1": lambda x: x[-1],
    "index 2": lambda x: x[2, 1],
    "index item": lambda x: x[0, 0].item(),
    "[::2]": lambda x: x[::2],
    "[list]": lambda x: x[[0, 5, 5, 2]],
    "[perm]": lambda x: x[torch.arange(len(x) - 1, -1, -1)],
    "[perm, column]": lambda x: x[torch.arange(len(x)), torch.arange(len(x)) % 4],
    "[arange, argmax]": lambda x: x[torch.arange(len(x)), x.argmax(1)],
    "[mask]": lambda x: x[x[:, 0] > 0],
    "[whole mask]": lambda x: x[torch.arange(len(x)) % 3 == 0],
    "[mask 2d]": lambda x: x[x > 0],
    "[mask of nothing]": lambda x: x[x[:, 0] > 1e9],
    "[bool]": lambda x: x[True],
    "mask column": lambda x: x[x[:, 0] > 0, 1],
    "nonzero": lambda x: (x > 0).nonzero(),
    "nonzero tuple": lambda x: torch.nonzero(x[:, 0] > 0, as_tuple=True),
    "nonzero squeeze": lambda x: (x[:, 0] > 0).nonzero(as_tuple=False).squeeze(1),
    "masked_select": lambda x: x.masked_select(x > 0),
    "max": lambda x: x.max(),
    "min": lambda x: x.min().item(),
    "argmax of all": lambda x: x.argmax(),
    "max 0": lambda x: x.max(0),
    "std": lambda x: x.std(),
    "var 0": lambda x: x.var(0),
    "median": lambda x: x.median(),
    "norm": lambda x: x.norm(),
    "torch.norm": lambda x: torch.norm(x, 2),
    "dist": lambda x: torch.dist(x, x * 2),
    "sort 0": lambda x: x[:, 0].sort(),
    "topk 0": lambda x: x[:, 0].topk(3),
    "unique": lambda x: x.round().unique(),
    "bincount": lambda x: torch.bincount(x.argmax(1), minlength=4),
    "histc": lambda x: torch.histc(x, 5),
    "cdist": lambda x: torch.cdist(x, x),
    "similarity": lambda x: F.normalize(x) @ F.normalize(x).t(),
    "x.T @ x": lambda x: x.T @ x,
    "matmul rows": lambda x: torch.ones(3, len(x)) @ x,
    "cat 0": lambda x: torch.cat([x, x * 2], 0),
    "cat 0 whole": lambda x: torch.cat([x, torch.zeros(2, 4)]),
    "cat 0 then rows": lambda x: torch.cat([x, x])[: len(x)] + x,
    "stack 0": lambda x: torch.stack([x, x]),
    "stack list": lambda x: torch.stack(list(x)),
    "repeat 0": lambda x: x.repeat(2, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 0),
    "flip 0": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "chunk 0": lambda x: x.chunk(2),
    "split 0": lambda x: x.split(4),
    "unbind 0": lambda x: x.unbind(0),
    "view across": lambda x: x.view(2, -1, 4) if len(x) % 2 == 0 else x.view(-1, 2, 2),
    "cumsum 0": lambda x: x.cumsum(0),
    "softmax 0": lambda x: x.softmax(0),
    "prod": lambda x: x[:, 0].prod(),
    "logsumexp 0": lambda x: x.logsumexp(0),
    "any of all": lambda x: (x > 1).any().item(),
    "all of all": lambda x: (x > -9).all(),
    "index_select 0": lambda x: x.index_select(0, torch.tensor([4, 0, 0])),
    "gather 0": lambda x: x.gather(0, torch.tensor([[1, 2, 3, 0]])),
    "take": lambda x: x.take(torch.tensor([0, 9])),
    "index_add": lambda x: torch.zeros(4, 4).index_add(0, x.argmax(1), x),
    "scatter_add": lambda x: torch.zeros(4).scatter_add(0, x.argmax(1), x[:, 0]),
    "embedding": lambda x: F.embedding(x.argmax(1), torch.arange(8.0).view(4, 2)),
    "isin": lambda x: torch.isin(x.argmax(1), torch.tensor([0, 2])),
    "triu": lambda x: (x @ x.t()).triu(1),
    "diag": lambda x: (x @ x.t()).diag(),
    "equal": lambda x: [torch.equal(x, x), torch.equal(x, x + 1), torch.allclose(x, x), x.equal(x.clone())],
    "corrcoef": lambda x: torch.corrcoef(x.t()),
    "quantile": lambda x: x.quantile(0.5, dim=0),
    "searchsorted": lambda x: torch.searchsorted(torch.tensor([-1.0, 0, 1]), x),
    "unfold": lambda x: x.unfold(0, 2, 1),
    "meshgrid": lambda x: torch.meshgrid(x[:, 0], torch.arange(2.0), indexing="ij"),
    "outer": lambda x: torch.outer(x[:, 0], x[:, 1]),
    "kron": lambda x: torch.kron(x[:, :1], torch.ones(1, 2)),
    "builtin sum": lambda x: sum(x),
    "builtin max": lambda x: max(x[:, 0]),
    "pixel": lambda x: x.sub(x.min()).div(x.max() - x.min()).mul(255).byte(),
    "standardise": lambda x: (x - x.mean()) / x.std(),
    "tensordot": lambda x: torch.tensordot(x, x, dims=([0], [0])),
    "count": lambda x: (x > 0).sum(0),
    "rows tuple": lambda x: x[(slice(None), 1)],
    "as index": lambda x: torch.arange(10.0)[x.argmax(1)],
    "as mask": lambda x: torch.arange(float(len(x)))[x[:, 0] > 0],
    "scalar index": lambda x: torch.arange(10.0)[x.argmax(1)[0]],
    "python index": lambda x: list(range(10))[x.argmax(1)[0]],
    "broadcast": lambda x: torch.broadcast_tensors(x[:, :1], torch.ones(4)),
    "pdist": lambda x: F.pdist(x),
    "vstack": lambda x: torch.vstack([x, x]),
    "hstack": lambda x: torch.hstack([x, x]),
    "row against row": lambda x: x.unsqueeze(0) - x.unsqueeze(1),
    "row against column": lambda x: x[:, 0].view(-1, 1) > x[:, 0].view(1, -1),
    "softmax rows then sum": lambda x: (F.softmax(x, 0) * x).sum(0),
}

ROWS = 11


def _data() -> torch.Tensor:
    torch.manual_seed(21)
    return torch.randn(ROWS, 4)


def _every(table: dict[str, Callable[[torch.Tensor], Any]]) -> None:
    plain = _data()
    for name, operation in table.items():
        truth = operation(plain.clone())
        for sizes, x in shards(plain):
            with case((name, sizes)):
                same(operation(x), truth, "value")


def check_cheap_operations_have_the_plain_value() -> None:
    _every(CHEAP)


def check_global_operations_have_the_plain_value() -> None:
    _every(GLOBAL)


def check_cheap_operations_gather_nothing() -> None:
    plain = _data()
    for name, operation in CHEAP.items():
        x = samestep.shard(plain)
        with case(name), gathers() as counted:
            operation(x)
        if name not in NOT_CHEAP_YET:
            true(counted.number == 0, f"{name} gathered {counted.number} tensors in {counted.operations}")


def _gradients(table: dict[str, Callable[[torch.Tensor], Any]]) -> None:
    plain = _data()
    for name, operation in table.items():
        whole = plain.clone().requires_grad_()
        try:
            truth = _differentiate(operation(whole * 1.5), whole)
        except (RuntimeError, NotImplementedError):  # torch has no derivative of it
            continue
        if truth is None:
            continue
        for sizes in patterns(ROWS):
            with case((name, sizes)):
                leaf = plain.clone().requires_grad_()
                same(_differentiate(operation(samestep.shard(leaf, 0, sizes) * 1.5), leaf), truth, "gradient")


def _differentiate(value: Any, leaf: torch.Tensor) -> torch.Tensor | None:
    parts = list(value) if isinstance(value, (tuple, list)) else [value]
    total = None
    for number, part in enumerate(parts):
        if isinstance(part, torch.Tensor) and part.requires_grad:
            factor = torch.linspace(0.5, 2, part.numel()).view(part.shape).to(part.dtype)
            term = (part * factor * (number + 1)).sum()
            total = term if total is None else total + term
    if total is None:
        return None
    total.backward()
    return leaf.grad


def check_cheap_operations_have_the_plain_gradient() -> None:
    _gradients(CHEAP)


def check_global_operations_have_the_plain_gradient() -> None:
    _gradients(GLOBAL)


def check_operations_with_whole_tensors_on_either_side() -> None:
    plain, other = _data(), torch.randn(ROWS, 4)
    pairs: dict[str, Callable[[Any, Any], Any]] = {
        "x + w": lambda x, w: x + w,
        "w + x": lambda x, w: w + x,
        "w - x": lambda x, w: w - x,
        "w / x": lambda x, w: w / x,
        "w ** x": lambda x, w: w.abs() ** x,
        "w > x": lambda x, w: w > x,
        "w == x": lambda x, w: w == x,
        "row of w": lambda x, w: x * w[0],
        "column of w": lambda x, w: x * w[:, :1],
        "scalar of w": lambda x, w: x * w[0, 0],
        "one-row w": lambda x, w: x + w[:1],
        "bigger w": lambda x, w: x + w.unsqueeze(0).repeat(2, 1, 1),
        "bigger x": lambda x, w: x.unsqueeze(1) + w.unsqueeze(1),
        "outer": lambda x, w: x.unsqueeze(1) + w.unsqueeze(0),
        "outer turned": lambda x, w: x.unsqueeze(0) + w.unsqueeze(1),
        "w @ x.T": lambda x, w: w @ x.t(),
        "x @ w.T": lambda x, w: x @ w.t(),
        "cat": lambda x, w: torch.cat([x, w], 1),
        "stack": lambda x, w: torch.stack([w, x], 1),
        "where": lambda x, w: torch.where(w > 0, x, w),
        "where 2": lambda x, w: torch.where(x > 0, w, x),
        "max": lambda x, w: torch.max(w, x),
        "lerp": lambda x, w: torch.lerp(w, x, 0.5),
        "lerp weight": lambda x, w: torch.lerp(w, x, x.sigmoid()),
        "mse": lambda x, w: (w - x).pow(2).mean(),
        "mul sum": lambda x, w: (w * x).sum(1).mean(),
        "addmm": lambda x, w: torch.addmm(w, x, torch.ones(4, 4)),
        "masked": lambda x, w: x.masked_fill(w > 0, -1.0),
        "masked by x": lambda x, w: w.masked_fill(x > 0, -1.0),
        "index by x": lambda x, w: w[x.argmax(1)],
        "gather": lambda x, w: w.gather(1, x.argmax(1, keepdim=True)),
        "gather from x": lambda x, w: x.gather(1, w.argmax(1, keepdim=True)),
        "clamp": lambda x, w: x.clamp(max=w),
        "scaled": lambda x, w: x * w.norm() / w.sum(),
        "float64": lambda x, w: x + w.double(),
        "int": lambda x, w: x * (w * 5).long(),
    }
    for name, operation in pairs.items():
        for sizes in patterns(ROWS):
            with case((name, sizes)):
                results = []
                for sharded in (True, False):
                    a, b = plain.clone().requires_grad_(), other.clone().requires_grad_()
                    value = operation((samestep.shard(a, 0, sizes) if sharded else a) * 1, b * 1)
                    if value.requires_grad:
                        factor = torch.linspace(0.5, 2, value.numel()).view(value.shape)
                        (value * factor).sum().backward()
                    results.append([value.detach() if isinstance(value, torch.Tensor) else value, a.grad, b.grad])
                same(results[0], results[1])


def check_two_tensors_cut_in_different_ways() -> None:
    plain, other = _data(), torch.randn(ROWS, 4)
    ways = patterns(ROWS)
    for a in ways:
        for b in ways:
            with case((a, b)):
                x, y = samestep.shard(plain, 0, a), samestep.shard(other, 0, b)
                same(x + y, plain + other, "+")
                same(torch.stack([x, y]), torch.stack([plain, other]), "stack")
                same(torch.cat([x, y], 1), torch.cat([plain, other], 1), "cat")
                same(x @ y.t(), plain @ other.t(), "@")
                same((x * y).sum(), (plain * other).sum(), "sum")
                same(x[y[:, 0] > 0], plain[other[:, 0] > 0], "mask")
                z, truth = x.clone(), plain.clone()
                z += y
                truth += other
                same(z, truth, "+=")
                z[:] = y
                same(z, other, "[:] =")
