"""What modules take and give: any nest and layout, other arguments than the batch, rows that depend on each other."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import samestep
from inside.claims import case, patterns, same, same_gradients, same_weights, true, twins
from samestep.globalview.tensor import GlobalTensor

ROWS = 7
#: How often `module.` stands in the first key of the state_dict of a wrapper.
KEYS = {"nested": 2, "inside": 1}
Pair = namedtuple("Pair", ["scores", "hidden"])


@dataclass
class Output:
    """As the models of transformers return."""

    scores: torch.Tensor
    hidden: torch.Tensor | None = None
    name: str = "output"


def _data() -> torch.Tensor:
    torch.manual_seed(71)
    return torch.randn(ROWS, 4)


class Model(nn.Module):
    """Two layers; `form` says what is made of their outputs."""

    def __init__(self, form: Callable[..., Any]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)
        self.register_buffer("anchors", torch.arange(6.0).view(2, 3))
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.form = form

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        hidden = torch.tanh(self.first(x))
        return self.form(self, x, hidden, self.second(hidden), *args, **kwargs)


#: What is returned, and (by the same name below) how a loss is made of it.
FORMS: dict[str, Callable[..., Any]] = {
    "tuple": lambda m, x, h, s: (s, h),
    "list": lambda m, x, h, s: [s, [h, (s * 2,)]],
    "dict": lambda m, x, h, s: {"scores": s, "deeper": {"hidden": h}},
    "ordered dict": lambda m, x, h, s: OrderedDict(scores=s, hidden=h),
    "namedtuple": lambda m, x, h, s: Pair(s, h),
    "dataclass": lambda m, x, h, s: Output(s, h),
    "dataclass with None": lambda m, x, h, s: Output(s),
    "with None": lambda m, x, h, s: (s, None, "text", 3, 2.5, True),
    "same tensor twice": lambda m, x, h, s: (s, s),
    "input returned": lambda m, x, h, s: (s, x),
    "constant buffer": lambda m, x, h, s: (s, m.anchors),
    "constant parameter": lambda m, x, h, s: (s, m.scale * torch.ones(3), m.first.weight),
    "constant from parameters": lambda m, x, h, s: (s, torch.tanh(m.second.weight).sum(1)),
    "scalar parameter": lambda m, x, h, s: (s, m.scale * 3),
    "integers": lambda m, x, h, s: (s, s.argmax(1), s > 0),
    "one column": lambda m, x, h, s: s[:, 0],
    "time major": lambda m, x, h, s: torch.stack([s, s * 2]),
    "transposed": lambda m, x, h, s: s.t(),
    "merged": lambda m, x, h, s: torch.stack([s, s * 2], 1).view(-1, 3),
    "square": lambda m, x, h, s: s.unsqueeze(1) * h.unsqueeze(2),
    "double": lambda m, x, h, s: s.double(),
    "view of input": lambda m, x, h, s: (s, x[:, 1:]),
    "non-contiguous": lambda m, x, h, s: s.unsqueeze(2).expand(-1, -1, 2).transpose(1, 2),
    "loss and scores": lambda m, x, h, s: ((s**2).mean(), s),
    "scalar mean": lambda m, x, h, s: (s**2).mean(),
    "scalar sum": lambda m, x, h, s: (s**2).sum(),
    "loss with penalty": lambda m, x, h, s: (s**2).mean() + 0.1 * (m.first.weight**2).sum(),
    "loss in a dict": lambda m, x, h, s: {"loss": F.cross_entropy(s, x[:, 0].gt(0).long()), "logits": s},
    "loss with ignored": lambda m, x, h, s: F.cross_entropy(s, torch.where(x[:, 0] > 0, 1, -100)),
    "python number": lambda m, x, h, s: (s, float((s > 0).sum())),
    "batch size": lambda m, x, h, s: (s, x.size(0), list(x.shape)),
    "mean of the batch": lambda m, x, h, s: (s, h.mean(0)),
    "centred": lambda m, x, h, s: s - s.mean(0),
    "softmax over the batch": lambda m, x, h, s: s.softmax(0),
    "similarities": lambda m, x, h, s: F.normalize(h) @ F.normalize(h).t(),
    "contrastive": lambda m, x, h, s: F.cross_entropy(h @ h.t(), torch.arange(x.size(0))),
    "hardest row": lambda m, x, h, s: s[s.norm(dim=1).argmax()],
    "sorted rows": lambda m, x, h, s: s[s[:, 0].argsort()],
    "selected rows": lambda m, x, h, s: s[s[:, 0] > 0],
    "flipped rows": lambda m, x, h, s: s.flip(0),
    "shifted rows": lambda m, x, h, s: s + s.roll(1, 0),
    "first row": lambda m, x, h, s: s - s[:1],
    "cumulative": lambda m, x, h, s: s.cumsum(0),
    "global maximum": lambda m, x, h, s: s / s.abs().max(),
    "numbered rows": lambda m, x, h, s: s + torch.arange(x.size(0)).view(-1, 1),
    "divided by the batch size": lambda m, x, h, s: s / x.size(0),
    "pairs": lambda m, x, h, s: (s.unsqueeze(0) - s.unsqueeze(1)).abs().sum(-1),
    "nothing": lambda m, x, h, s: None,
    "text": lambda m, x, h, s: "text",
}


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for v in value.values() for t in _tensors(v)]
    if isinstance(value, Output):
        return _tensors([value.scores, value.hidden])
    return [t for v in value for t in _tensors(v)] if isinstance(value, (tuple, list)) else []


def _fields(value: Any) -> Any:
    return [value.scores, value.hidden, value.name] if isinstance(value, Output) else value


def check_every_form_of_output() -> None:
    x = _data()
    for name, form in FORMS.items():
        truth = twins(lambda kind=form: Model(kind))[1]
        expected = _train(truth, x)
        for sizes in patterns(ROWS):
            with case((name, sizes)):
                ours = twins(lambda kind=form: Model(kind))[0]
                # A double that was made of single-precision numbers is as inexact as they are.
                scale = 1e5 if name == "double" else 1
                same(_train(ours, samestep.shard(x, 0, sizes)), expected, "returned", scale=scale)
                same_gradients(ours, truth)
                same_weights(ours, truth)


def _train(model: nn.Module, x: torch.Tensor) -> list[Any]:
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    seen: list[Any] = []
    for _ in range(3):
        optimizer.zero_grad()
        value = model(x)
        seen.append(_fields(samestep.whole(value)))
        parts = [(t.double() ** 2).mean() for t in _tensors(value) if t.requires_grad]
        if parts:
            torch.stack(parts).sum().backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        seen.append(_fields(samestep.whole(model(x))))
    model.train()
    return seen


def check_rows_stay_on_their_ranks() -> None:
    """A model of independent rows is split: else everything would be right, and slow."""
    names = ["tuple", "dict", "namedtuple", "dataclass", "one column", "time major", "transposed", "merged", "integers"]
    for name in names:
        with case(name):
            model = twins(lambda kind=FORMS[name]: Model(kind))[0]
            for tensor in _tensors(model(samestep.shard(_data()))):
                true(type(tensor) is GlobalTensor, "an output is not sharded")


#: Calls with more than the batch: `call(model, x, other)` where `other` is a whole tensor that requires a gradient.
CALLS: dict[str, tuple[Callable[..., Any], Callable[[Any, torch.Tensor, torch.Tensor], Any]]] = {
    "keyword batch": (lambda m, x, h, s: s, lambda m, x, w: m(x=x)),
    "vector": (lambda m, x, h, s, w: s * w.sum(), lambda m, x, w: m(x, w)),
    "keyword vector": (lambda m, x, h, s, w: s + w[:3], lambda m, x, w: m(x, w=w)),
    "rows of another": (lambda m, x, h, s, w: s + w.sum(1, keepdim=True), lambda m, x, w: m(x, w.expand(ROWS, 4))),
    "sharded twice": (lambda m, x, h, s, w: s + w[:, :3], lambda m, x, w: m(x, x * w)),
    "cut otherwise": (lambda m, x, h, s, w: s + w[:, :3], lambda m, x, w: m(x, x.detach().flip(0) * w)),
    "scalar": (lambda m, x, h, s, w: s * w, lambda m, x, w: m(x, w.sum())),
    "number": (lambda m, x, h, s, w: s * w, lambda m, x, w: m(x, 2.5) * w.sum()),
    "list": (lambda m, x, h, s, w: s * w[0].sum() + w[1][:, :3], lambda m, x, w: m(x, [w, x])),
    "dict": (lambda m, x, h, s, w: s + w["a"][:, :3] * w["b"], lambda m, x, w: m(x, w={"a": x, "b": 2, "c": "text"})),
    "mask": (lambda m, x, h, s, w: s * w, lambda m, x, w: m(x, (x[:, :1] > 0).float()) * w.sum()),
    "sum of rows": (lambda m, x, h, s, w: s * w[:3], lambda m, x, w: m(x, (x * w).sum(0))),
    "mean loss": (lambda m, x, h, s, w: s * w, lambda m, x, w: m(x, (x * w).mean())),
    "None": (lambda m, x, h, s, w=None: s, lambda m, x, w: m(x, None) * w.sum()),
    "output of itself": (lambda m, x, h, s, w=None: s if w is None else s * w, lambda m, x, w: m(x, m(x)) * w.sum()),
    "tracked input": (lambda m, x, h, s: s, lambda m, x, w: m(x * w)),
}


def check_other_arguments() -> None:
    x = _data()
    for name, (form, call) in CALLS.items():
        for sizes in patterns(ROWS):
            with case((name, sizes)):
                ours, truth = twins(lambda kind=form: Model(kind))
                results = []
                for model, data in ((ours, samestep.shard(x, 0, sizes)), (truth, x)):
                    other = torch.linspace(0.5, 2, 4).requires_grad_()
                    for _ in range(2):
                        value = call(model, data, other)
                        (value**2).mean().backward()
                    results.append([value.detach(), other.grad])
                same(results[0], results[1])
                same_gradients(ours, truth)


class Recurrent(nn.Module):
    def __init__(self, kind: Any, batch_first: bool) -> None:
        super().__init__()
        self.net = kind(4, 6, batch_first=batch_first, bidirectional=True, num_layers=2)
        self.head = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor, state: Any = None) -> Any:
        out, state = self.net(x, state)
        return self.head(out), state


def check_recurrent_networks_with_time_first() -> None:
    torch.manual_seed(72)
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        for dim in (0, 1):
            x = torch.randn(*((ROWS, 5, 4) if dim == 0 else (5, ROWS, 4)))
            for sizes in patterns(ROWS):
                with case((kind.__name__, "batch first" if dim == 0 else "time first", sizes)):
                    ours, truth = twins(lambda net=kind, d=dim: Recurrent(net, d == 0))
                    results = []
                    for model, data in ((ours, samestep.shard(x, dim, sizes)), (truth, x)):
                        out, state = model(data)
                        again, _ = model(data, state)
                        (out.pow(2).mean() + again.sum(dim=-1).std()).backward()
                        results.append([out.detach(), again.detach()])
                    same(results[0], results[1])
                    same_gradients(ours, truth, scale=3)


class Normed(nn.Module):
    def __init__(self, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6), norm(), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


def check_batch_norm_sees_the_whole_batch() -> None:
    x = _data() * 2 + 1
    norms: dict[str, Callable[[], nn.Module]] = {
        "usual": lambda: nn.BatchNorm1d(6),
        "momentum None": lambda: nn.BatchNorm1d(6, momentum=None),
        "without statistics": lambda: nn.BatchNorm1d(6, track_running_stats=False),
        "without weights": lambda: nn.BatchNorm1d(6, affine=False),
        "layer norm": lambda: nn.LayerNorm(6),
    }
    for name, norm in norms.items():
        truth = twins(lambda kind=norm: Normed(kind))[1]
        expected = _train(truth, x)
        for sizes in patterns(ROWS):
            with case((name, sizes)):
                ours = twins(lambda kind=norm: Normed(kind))[0]
                same(_train(ours, samestep.shard(x, 0, sizes)), expected, "returned", scale=10)
                same_weights(ours, truth, scale=10)
                same_gradients(ours, truth, scale=10)


def check_data_parallel_wrappers() -> None:
    x = _data()
    wrappers: dict[str, Callable[[nn.Module], nn.Module]] = {
        "DataParallel": nn.DataParallel,
        "samestep's": samestep.DataParallel,
        "nested": lambda m: nn.DataParallel(nn.DataParallel(m)),
        "inside": lambda m: nn.Sequential(nn.DataParallel(m), nn.Linear(3, 3)),
        "part": lambda m: nn.Sequential(nn.DataParallel(m.first), nn.Tanh(), m.second),
        "device_ids": lambda m: nn.DataParallel(m, device_ids=None, output_device=None, dim=0),
    }
    for name, wrap in wrappers.items():
        with case(name):
            ours, truth = twins(lambda w=wrap: w(Model(lambda m, x, h, s: s)))
            # The truth is the same wrapper's modules on whole tensors, without the wrapper.
            for module in (ours, truth):
                true(next(iter(module.state_dict())).count("module.") == KEYS.get(name, 1), "keys")
            results = []
            for model, data in ((ours, x), (ours, samestep.shard(x)), (ours, x[:1])):
                model.zero_grad()
                value = model(data)
                (value**2).mean().backward()
                results.append([samestep.whole(value).detach(), {n: p.grad for n, p in model.named_parameters()}])
            same(results[0], results[1], "whole input against sharded input")
            same(results[2][0], results[0][0][:1], "one row")
