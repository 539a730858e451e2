"""`--batchnorm local`: every rank normalises by its own rows; what the script sees of it is whole all the same."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import samestep
from inside.claims import case, patterns, same, same_gradients, same_weights, true, twins, world
from samestep.ledger import LEDGER
from samestep.numerics import Numerics, choose

choose(Numerics(batchnorm="local"))  # the checks of a file have ranks of their own

ROWS = 12


class Net(nn.Module):
    def __init__(self, norm: Any = nn.BatchNorm1d) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 6), norm(6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


def _data() -> torch.Tensor:
    torch.manual_seed(8)
    return torch.randn(ROWS, 3) * 2 + 1


def _sizes() -> list[tuple[int, ...]]:
    """Evenly, and unevenly with no rank below two rows."""
    size = world().size
    return [world().split(ROWS), (2,) * (size - 1) + (ROWS - 2 * (size - 1),)]


def _by_blocks(model: Any, x: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    """What the ranks compute, by one process: each block normalised by itself, the running statistics by all."""
    norm, hidden = model.norm, model.first(x)
    blocks = [
        nn.functional.batch_norm(block, None, None, norm.weight, norm.bias, True, 0.0, norm.eps)
        for block in hidden.split(list(sizes))
    ]
    if norm.running_mean is not None:
        norm(hidden.detach())
    return model.last(torch.relu(torch.cat(blocks)))


def check_rows_of_a_rank_and_statistics_of_all() -> None:
    x = _data()
    for norm in (nn.BatchNorm1d, lambda c: nn.BatchNorm1d(c, momentum=None), nn.SyncBatchNorm):
        for sizes in _sizes():
            with case(sizes):
                ours, truth = twins(lambda norm=norm: Net(norm))
                for _ in range(3):
                    got, expected = ours(samestep.shard(x, 0, sizes)), _by_blocks(truth, x, sizes)
                    same(got, expected, scale=10)
                    got.pow(2).mean().backward()
                    expected.pow(2).mean().backward()
                same_gradients(ours, truth, scale=10)
                same_weights(ours, truth, "running statistics", scale=10)
                ours.eval(), truth.eval()
                same(ours(samestep.shard(x, 0, sizes)), truth(x), "evaluation", scale=10)
    true(all(plan == "split" for plan in LEDGER.regions.values()), f"not split: {LEDGER.regions}")


def check_half_precision() -> None:
    x = _data().bfloat16()
    for sizes in _sizes():
        with case(sizes):
            ours, truth = twins(lambda: Net().bfloat16())
            same(ours(samestep.shard(x, 0, sizes)), _by_blocks(truth, x, sizes), scale=3)
            same_weights(ours, truth, "running statistics", scale=3)


def check_a_rank_with_a_single_row_uses_the_whole_batch() -> None:
    x = _data()
    for sizes in patterns(ROWS)[1:]:
        if 1 in sizes:
            with case(sizes):
                ours, truth = twins(Net)
                same(ours(samestep.shard(x, 0, sizes)), truth(x), scale=10)
                same_weights(ours, truth, "running statistics", scale=10)


def check_activations_computed_again() -> None:
    class Again(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(super().forward, x, use_reentrant=False)

    x = _data()
    for sizes in _sizes():
        with case(sizes):
            ours, truth = twins(Again)
            ours(samestep.shard(x, 0, sizes)).pow(2).mean().backward()
            _by_blocks(truth, x, sizes).pow(2).mean().backward()
            truth.norm(truth.first(x))  # the running statistics move once more
            same_gradients(ours, truth, scale=10)
            same_weights(ours, truth, "running statistics", scale=10)


def check_ranks_stay_alike() -> None:
    ours = Net()
    optimizer = torch.optim.SGD(ours.parameters(), 0.1)
    for _ in range(3):
        for sizes in _sizes():
            optimizer.zero_grad()
            ours(samestep.shard(torch.randn(ROWS, 3), 0, sizes)).pow(2).mean().backward()
            optimizer.step()
    everyone = world().all_gather_objects([t.tolist() for t in ours.state_dict().values()])
    true(all(one == everyone[0] for one in everyone), "the ranks differ")


def _saved(t: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(t, file)
    file.seek(0)
    loaded: torch.Tensor = torch.load(file)
    return loaded


#: Ways to look at running statistics that the forward just before has changed.
LOOKS: dict[str, Any] = {
    "item": lambda n: [t.item() for t in n.running_mean],
    "tolist": lambda n: n.running_mean.tolist(),
    "numpy": lambda n: torch.tensor(n.running_mean.numpy()),
    "numpy.asarray": lambda n: torch.tensor(numpy.asarray(n.running_mean)),
    "repr": lambda n: repr(n.running_var),
    "state_dict": lambda n: dict(n.state_dict()),
    "deepcopy": lambda n: dict(copy.deepcopy(n).state_dict()),
    "pickle": lambda n: dict(pickle.loads(pickle.dumps(n)).state_dict()),
    "save": lambda n: _saved(n.running_mean),
    "dlpack": lambda n: torch.from_dlpack(n.running_mean).clone(),
    "data": lambda n: n.running_mean.data.clone(),
    "detach": lambda n: n.running_mean.detach() * 2,
    "an operand": lambda n: 1 + n.running_mean,
    "one of a list": lambda n: torch.stack([torch.zeros(6), n.running_var]),
    "foreach": lambda n: torch._foreach_add([n.running_mean, n.running_var], 1.0),
    "copied from": lambda n: torch.zeros(6).copy_(n.running_mean),
    "named_buffers": lambda n: [b.sum() for _, b in n.named_buffers()],
    "zeroed": lambda n: n.running_mean.zero_() + 0,
    "reset": lambda n: [n.reset_running_stats(), n.running_var.clone()][1],
    "loaded": lambda n: [n.load_state_dict(nn.BatchNorm1d(6).state_dict()), n.running_var.clone()][1],
    "half": lambda n: n.half().float().running_mean.clone(),
    "functional": lambda n: nn.functional.batch_norm(torch.ones(2, 6), n.running_mean, n.running_var),
    "evaluation": lambda n: n.eval()(torch.ones(2, 6)).detach(),
    "is a tensor": lambda n: [isinstance(n.running_mean, torch.Tensor), n.running_mean.shape == (6,)],
}


def check_statistics_are_whole_whenever_somebody_looks() -> None:
    x = _data()
    for how, look in LOOKS.items():
        for sizes in _sizes():
            with case(f"{how}, {sizes}"):
                ours, truth = twins(Net)
                for _ in range(2):
                    ours(samestep.shard(x, 0, sizes))
                    _by_blocks(truth, x, sizes)
                same(look(ours.norm), look(truth.norm), how, scale=10)
                true(type(ours.norm.running_mean) is torch.Tensor, f"a {type(ours.norm.running_mean)} is left")


def check_one_norm_called_twice_and_shared_by_two_models() -> None:
    x = _data()
    for sizes in _sizes():
        with case(sizes):
            ours, truth = twins(Net)
            other, true_other = twins(Net)
            other.norm, true_other.norm = ours.norm, truth.norm
            for _ in range(2):
                for model, plain in ((ours, truth), (other, true_other), (ours, truth)):
                    same(model(samestep.shard(x, 0, sizes)), _by_blocks(plain, x, sizes), "output")
            same(dict(ours.norm.state_dict()), dict(truth.norm.state_dict()), "statistics")


def check_what_was_taken_before_sees_what_comes_after() -> None:
    """A state_dict, a slice and an array share the statistics' memory."""
    x = _data()

    def look(model: Any, run: Any) -> Any:
        kept = model.state_dict()
        part, array = model.norm.running_mean[2:], model.norm.running_var.numpy()
        run()
        seen = [{name: t.clone() for name, t in kept.items()}, part.clone(), torch.tensor(array)]
        kept["norm.running_mean"].zero_()
        return [seen, torch.tensor(model.norm.running_mean), torch.jit.script(model.eval()).norm.running_var.clone()]

    for sizes in _sizes():
        with case(sizes):
            ours, truth = twins(Net)
            found = look(ours, lambda sizes=sizes, ours=ours: ours(samestep.shard(x, 0, sizes)))
            same(found, look(truth, lambda sizes=sizes, truth=truth: _by_blocks(truth, x, sizes)), scale=10)
