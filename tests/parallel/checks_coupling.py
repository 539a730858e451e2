"""Couplings between rows that a check of a few rows at the first call cannot see, or that leave by another door."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import samestep
from inside.claims import case, same, true, twins
from inside.training import all_of, train

ROWS = 40


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(4)
    return torch.randn(ROWS, 4), torch.randint(0, 3, (ROWS,))


class Kind(enum.Enum):
    """A setting."""

    ALONE = 0
    CENTRED = 1


class Net(nn.Module):
    """Two layers, and between them what a subclass does with all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(self.between(torch.tanh(self.first(x))))

    def between(self, hidden: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Capacity(Net):
    """A mixture of experts whose capacity holds any few rows (Switch Transformer, section 2.2)."""

    def between(self, hidden: torch.Tensor) -> torch.Tensor:
        mine = hidden[:, 0] > 0
        place = mine.int().cumsum(0)
        kept = mine & (place <= max(12, hidden.size(0) // 4))
        return torch.where(kept[:, None], hidden * 2, hidden)


class Threshold(Net):
    """All rows are held against the tenth largest."""

    def between(self, hidden: torch.Tensor) -> torch.Tensor:
        least = hidden[:, 0].topk(min(10, hidden.size(0))).values[-1]
        return hidden * (hidden[:, :1] >= least)


def _losses(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    return train(model, lambda: F.cross_entropy(model(x), y), 3)


def check_couplings_among_many_rows_only() -> None:
    x, y = _data()
    for kind in (Capacity, Threshold):
        with case(kind.__name__):
            model, truth = twins(kind)
            same(_losses(model, samestep.shard(x), samestep.shard(y)), _losses(truth, x, y), "losses")


class Settings(Net):
    """Centres the batch if one of its settings says so; counts its calls and keeps the largest number that it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.epoch, self.kind, self.mean = 0.0, 0, Kind.ALONE, None
        self.pair, self.table, self.list = (0,), {"on": 0.0}, [0]
        self.mix: Any = _unchanged
        self.calls, self.largest = 0, 0.0

    def between(self, hidden: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.note(hidden)
        centred = hidden - hidden.mean(0)
        on = self.weight or self.epoch > 2 or self.kind is Kind.CENTRED or self.pair[0] or self.table["on"]
        return self.mix(centred if on or self.list[0] or self.mean is not None else hidden)

    def note(self, hidden: torch.Tensor) -> None:
        """Differs between the ranks."""
        with torch.no_grad():
            self.largest = max(self.largest, hidden.shape[0] / 7)


def _unchanged(hidden: torch.Tensor) -> torch.Tensor:
    return hidden


def _centred(hidden: torch.Tensor) -> torch.Tensor:
    return hidden - hidden.mean(0)


def check_settings_that_the_script_changes_later() -> None:
    changes: dict[str, Any] = {
        "weight": 0.5,
        "epoch": 3,
        "kind": Kind.CENTRED,
        "mean": torch.ones(1),
        "pair": (1,),
        "table": {"on": 1.0},
        "list": [1],
        "mix": _centred,
    }
    for name, value in changes.items():

        def step(model: Any, x: torch.Tensor, y: torch.Tensor, name: str = name, value: Any = value) -> Any:
            before = getattr(model, name)
            losses = []
            for now in (before, value, before, value):
                setattr(model, name, now)
                losses += train(model, lambda: F.cross_entropy(model(x), y), 2)
            return losses

        with case(name):
            all_of(step, make=Settings)


def check_a_setting_that_changes_at_every_step() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        losses = []
        for number in range(40):
            model.weight = max(0, number - 4) / 100
            losses += train(model, lambda: F.cross_entropy(model(x), y), 1)
        return losses

    all_of(step, make=Settings)


def check_what_forward_itself_counts_is_that_of_the_batch() -> None:
    x, y = _data()
    model, truth = twins(Settings)
    same(_losses(model, samestep.shard(x), samestep.shard(y)), _losses(truth, x, y), "losses")
    same((model.calls, model.largest), (truth.calls, truth.largest), "counted")


class Notes:
    """What a model of the script's carries besides its output."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.hidden = hidden


class Returns(Net):
    """Returns something that is no nest of tensors."""

    what = "object"

    def forward(self, x: torch.Tensor) -> Any:
        hidden = torch.tanh(self.first(x))
        plain = hidden.detach()
        other: Any = {
            "object": lambda: Notes(hidden),
            "array": plain.numpy,
            "number": lambda: plain.numpy().mean(),
            "set": lambda: frozenset(plain.argmax(1).numpy().tolist()),
            "range": lambda: range(len(x)),
            "closure": lambda: lambda: hidden,
        }[self.what]()
        return self.second(hidden), {self.what: other}


def check_other_things_that_are_returned() -> None:
    x, _ = _data()
    for what in ("object", "array", "number", "set", "range", "closure"):
        with case(what):
            torch.manual_seed(1)
            model = Returns()
            model.what = what
            truth, found = model(x), model(samestep.shard(x))
            same(found[0], truth[0], "output")
            one, other = (_seen(each[1][what]) for each in (found, truth))
            same(one, other, what) if isinstance(other, torch.Tensor) else true(one == other, f"{what}: {one}")


def _seen(thing: Any) -> Any:
    """What the script finds in it."""
    if isinstance(thing, Notes):
        return thing.hidden
    if callable(thing):
        return thing()
    return torch.as_tensor(thing) if isinstance(thing, (np.ndarray, np.floating)) else thing


def check_hooks_on_every_module_see_the_batch() -> None:
    seen: list[tuple[int, ...]] = []
    handle = nn.modules.module.register_module_forward_hook(lambda m, i, o: seen.append(tuple(o.shape)))
    try:
        x, _ = _data()
        nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))(samestep.shard(x))
    finally:
        handle.remove()
    true(seen == [(ROWS, 6), (ROWS, 3), (ROWS, 3)], f"saw {seen}")
