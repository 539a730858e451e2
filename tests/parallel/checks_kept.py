"""State that a forward changes outside buffers: attributes, containers, objects, parameters. And models that end."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal

import samestep
from inside.claims import case, note, patterns, same, true, twins, world
from inside.training import ROWS, all_of, both, data, net, train
from samestep.ledger import LEDGER
from samestep.parallel import region


class Meter:
    """An object of the script's that counts and averages."""

    def __init__(self) -> None:
        self.count, self.parts = 0, {"sizes": [0]}

    def __call__(self, x: torch.Tensor) -> None:
        self.count += x.size(0)
        self.parts["sizes"].append(x.size(0))


class Keeping(nn.Module):
    """Keeps something from each call; `how` says what."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.target = nn.Linear(4, 3), nn.Linear(4, 3)
        self.target.requires_grad_(False)
        self.how, self.meter, self.running = how, Meter(), torch.zeros(4)
        self.cache: dict[Any, Any] = {}
        self.sizes: list[int] = []
        self.shown: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        getattr(self, self.how)(x)
        return self.layer(x) + self.target(x)

    def by_object(self, x: torch.Tensor) -> None:
        self.meter(x)

    def by_list(self, x: torch.Tensor) -> None:
        self.sizes.append(x.size(0))

    def by_tensor(self, x: torch.Tensor) -> None:
        self.running.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)

    def by_dict(self, x: torch.Tensor) -> None:
        self.cache["mean"] = x.detach().mean(0)

    def by_tuple(self, x: torch.Tensor) -> None:
        self.shown = (x.detach().sum(0), "text", tuple(x.shape))

    def by_distribution(self, x: torch.Tensor) -> None:
        self.shown = Normal(self.layer(x), torch.ones(3))

    def by_moving_average(self, x: torch.Tensor) -> None:
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.layer.parameters(), strict=True):
                slow.data = slow.data * 0.9 + fast.data * 0.1

    def by_parameter(self, x: torch.Tensor) -> None:
        with torch.no_grad():
            self.layer.weight.clamp_(-0.2, 0.2)
            self.target.bias.add_(x.detach().mean(), alpha=0.1)

    def of_positions(self, x: torch.Tensor) -> None:
        if x.size(1) not in self.cache:
            self.cache[x.size(1)] = torch.arange(x.size(1)).float()

    def seen(self) -> Any:
        shown = [self.shown.mean, self.shown.entropy().mean()] if isinstance(self.shown, Normal) else [self.shown]
        kept = [self.running, self.cache, self.sizes, self.meter.count, self.meter.parts, *shown]
        return samestep.whole(copy.copy(kept))


#: How it is kept → the attribute that the report must name, or None if it may be split.
WAYS = {
    "by_object": "meter.",
    "by_list": "sizes",
    "by_tensor": "running",
    "by_dict": "cache",
    "by_tuple": "shown",
    "by_distribution": "shown",
    "by_moving_average": None,
    "by_parameter": "target.bias",
    "of_positions": None,
}


def check_whatever_a_forward_keeps() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        losses = train(model, lambda: F.cross_entropy(model(x), y))
        model.eval()
        with torch.no_grad():
            out = samestep.whole(model(x))
        model.train()
        return [losses, out.detach(), model.seen()]

    for way, attribute in WAYS.items():
        with case(way):
            LEDGER.regions.clear()
            both(step, lambda how=way: Keeping(how))
            plan = LEDGER.regions["Keeping (training)"]
            if attribute is None:
                true(plan == "split", f"{plan} instead of split")
            else:
                true(f"`{attribute}" in plan, f"{plan!r} does not name {attribute}")


def check_a_freed_model_is_gone() -> None:
    x, y = data()

    def gone(model: Any) -> list[Any]:
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for batch in (samestep.shard(x), samestep.shard(x[:3]), samestep.shard(x[:1])):
            F.cross_entropy(model(batch), samestep.shard(y[: len(batch)])).backward()
            optimizer.step()
        model.eval()
        model(samestep.shard(x))
        return [weakref.ref(model), *(weakref.ref(p) for p in model.parameters()), weakref.ref(model[0])]

    makers = {
        "split": net,
        "opened": lambda: nn.Sequential(Keeping("by_list"), nn.Linear(3, 3)),
        "wrapped": lambda: nn.Sequential(nn.DataParallel(net())),
    }
    for name, make in makers.items():
        alive = [ref for ref in gone(make()) if ref() is not None]
        true(not alive, f"{name}: {len(alive)} of a freed model are still there")


def check_buckets_take_no_more_than_ddps() -> None:
    """DDP holds gradients and buckets of their size all the time. Here a bucket is the gradients."""
    x, y = data()
    for to_none in (True, False):
        model = nn.Sequential(nn.Linear(4, 300), nn.ReLU(), nn.Linear(300, 700), nn.ReLU(), nn.Linear(700, 3))
        gradients = sum(p.numel() * p.element_size() for p in model.parameters())
        for _ in range(4):
            model.zero_grad(set_to_none=to_none)
            before = LEDGER.reduced_bytes
            F.cross_entropy(model(samestep.shard(x)), samestep.shard(y)).backward()
            buckets = region._KNOWN[model].buckets
            slack = sum(68 * len(b.parameters) + 4 for b in buckets)
            sent = LEDGER.reduced_bytes - before
            true(gradients <= sent <= gradients + slack, f"{sent} bytes were sent for {gradients} of gradients")
            true(_held(model, buckets) <= gradients + slack, f"{_held(model, buckets)} bytes for {gradients}")


def _held(model: nn.Module, buckets: list[Any]) -> int:
    """Bytes of the buckets' memory, and of gradients that do not lie in it."""
    flats = [b._buffer.flat for b in buckets if b._buffer is not None]
    ranges = [range(flat.data_ptr(), flat.data_ptr() + flat.nbytes) for flat in flats]
    outside = [p.grad.nbytes for p in model.parameters() if not any(p.grad.data_ptr() in r for r in ranges)]
    return sum(len(r) for r in ranges) + sum(outside)


def check_heads_that_come_and_go_do_not_add_up() -> None:
    x, y = data()
    body = nn.Linear(4, 4)
    for _ in range(40):
        model = nn.Sequential(body, nn.Linear(4, 3))
        gradients = torch.autograd.grad(
            F.cross_entropy(model(samestep.shard(x)), samestep.shard(y)), list(body.parameters())
        )
        true(len(gradients) == 2, "gradients")
        F.cross_entropy(model(samestep.shard(x)), samestep.shard(y)).backward()
    known = region._KNOWN[model].buckets
    count = max(len(b.companions) for b in known)
    true(count <= 12, f"{count} buckets of a model with 2 layers")


class Metric(nn.Module):
    """As torchmetrics' are: its hash is made of what it holds, which is new after each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.total = nn.Parameter(torch.ones(())), torch.zeros(())

    def __hash__(self) -> int:
        return hash((type(self).__name__, id(self.total)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + 1


def check_ranks_whose_memory_differs_decide_alike() -> None:
    """Addresses are given again, hashes change and garbage is collected at other times in each process."""
    x, _ = data()
    litter: list[Any] = []
    gc.disable()
    try:
        model = nn.Sequential(nn.Linear(4, 4), Metric())
        for number in range(30):
            LEDGER.regions.clear()
            model(samestep.shard(x))
            model[1](samestep.shard(x))
            model[1].total = model[1].total + 1
            part = nn.Sequential(nn.Linear(4, 4))
            part.cycle = [part]  # only the collector frees it
            model.extra = part
            model.add_module("0", nn.Linear(4, 4))
            if world().rank == number % 2:
                gc.collect()
            litter.append(torch.empty(()) if world().rank == number % 3 else None)
            known = [len(plans) for plans in region._KNOWN[model]._plans.values()]
            everyone = world().all_gather_objects((known, sorted(LEDGER.regions)))
            true(all(one == everyone[0] for one in everyone), f"{everyone}")
    finally:
        gc.enable()


class Centre(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


def check_a_replaced_part_is_looked_at_again() -> None:
    """Also if the new part lies where the old one lay, and is of the same class."""

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        seen = []
        for number in range(12):
            model[1] = nn.Softmax(dim=number % 2)
            model[2] = None
            model[2] = nn.Sequential(nn.Linear(8, 3), Centre()) if number % 3 == 1 else nn.Sequential(nn.Linear(8, 3))
            with torch.no_grad():
                for p in model[2].parameters():
                    p.copy_(torch.linspace(-1, 1, p.numel()).view_as(p))
            seen += train(model, lambda: F.cross_entropy(model(x), y), 1)
        return seen

    both(step)


def check_a_copy_is_a_region_by_itself() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        train(model, lambda: F.cross_entropy(model(x), y), 1)
        twin = copy.deepcopy(model)
        return train(twin, lambda: F.cross_entropy(twin(x), y) + F.cross_entropy(model(x), y), 2)

    all_of(step)
    with case("deepcopy is split"):
        x, _ = data()
        model = net()
        model(samestep.shard(x))
        LEDGER.regions.clear()
        copy.deepcopy(model)(samestep.shard(x))
        true(LEDGER.regions.get("Sequential (training)") == "split", f"{LEDGER.regions}")


def check_running_twice_leaves_parameters_alone() -> None:
    """The check runs a module that writes into its parameters; what it wrote must not last."""
    x, _ = data()
    ours, truth = twins(lambda: Keeping("by_moving_average"))
    for sizes in patterns(ROWS):
        for model, batch in ((ours, samestep.shard(x, 0, sizes)), (truth, x)):
            model(batch)
        same(ours.target.weight, truth.target.weight, f"moved weights {sizes}")
    if any(p.grad is not None for p in ours.parameters()):
        note("the check left gradients behind")


class Gated(nn.Module):
    """Couples its rows behind a gate that starts at zero; `last` has its last layer at zero."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.layer, self.gate = nn.Linear(4, 3), nn.Parameter(torch.zeros(()))
        self.out = nn.Linear(3, 3)
        if last:
            nn.init.zeros_(self.out.weight)
            nn.init.constant_(self.gate, 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(x)
        return self.out(hidden + self.gate * (hidden - hidden.mean(0)).pow(2))


def check_couplings_behind_a_gate_that_starts_at_zero() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return train(model, lambda: F.cross_entropy(model(x), y), 5, lr=0.5)

    for last in (False, True):
        with case("last layer" if last else "gate"):
            both(step, lambda kind=last: Gated(kind))


class Wavering(nn.Module):
    """Returns more or fewer tensors as Python's random numbers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale, self.calls = nn.Linear(4, 3), nn.Parameter(torch.ones(3)), [1, 2, 3]
        self.few = False

    def forward(self, x: torch.Tensor) -> Any:
        return [self.layer(x) * k for k in self.calls[: 1 if self.few else 3]]


def check_another_number_of_outputs_than_at_first() -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        seen = []
        for few in (False, True, False):
            model.calls = model.calls[:1] if few else [1, 2, 3]
            outputs = model(x)
            sum(F.cross_entropy(out, y) for out in outputs).backward()
            seen.append([len(outputs), outputs[-1].detach()])
        return seen

    both(step, Wavering)
