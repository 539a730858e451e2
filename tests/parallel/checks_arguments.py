"""Whole tensors among the arguments of a module: which of them, and which of their dimensions, follow the rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import samestep
from inside.claims import case, patterns, raises, same, same_gradients, true, twins, world
from inside.training import ROWS, train
from samestep.errors import SamestepError
from samestep.ledger import LEDGER
from samestep.parallel.devices import refuse_several


class Recurrent(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(4, ROWS, num_layers=2, batch_first=batch_first), nn.Linear(ROWS, 2)

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        out, state = self.rnn(x, state)
        return self.head(out), state


def check_initial_states_of_recurrent_networks() -> None:
    """(layers, rows, width), whole at first, where the width is as long as the batch."""
    torch.manual_seed(91)
    for dim in (0, 1):
        x = torch.randn(*((ROWS, 5, 4) if dim == 0 else (5, ROWS, 4)))
        for sizes in patterns(ROWS):
            with case(("batch first" if dim == 0 else "time first", sizes)):
                ours, truth = twins(lambda d=dim: Recurrent(d == 0))
                LEDGER.regions.clear()
                results = []
                for model, batch in ((ours, samestep.shard(x, dim, sizes)), (truth, x)):
                    start = torch.full((2, ROWS, ROWS), 0.1).requires_grad_()
                    out, state = model(batch, (start, start * 2))
                    again, _ = model(batch, state)
                    (out.pow(2).mean() + again.mean()).backward()
                    results.append([out.detach(), state, start.grad])
                same(results[0], results[1])
                same_gradients(ours, truth, scale=3)
                true(LEDGER.regions["Recurrent (training)"] == "split", f"{LEDGER.regions}")


class Compared(nn.Module):
    """Rows against a table: what belongs to the batch cannot be told by its length."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, table: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        scores = self.layer(x) @ table.t()
        return scores if mask is None else scores @ mask


def check_tables_as_long_as_the_batch() -> None:
    """The last batch of an epoch may happen to be as long as something else."""
    torch.manual_seed(92)
    table, mask = torch.randn(5, 4), torch.rand(5, 5).round()
    for rows in ((7, 5), (5, 7, 5), (5,)):
        batches = [torch.randn(n, 4) for n in rows]
        for with_mask in (False, True):
            with case((rows, "mask" if with_mask else "no mask")):
                ours, truth = twins(Compared)
                results = []
                for model, cut in ((ours, samestep.shard), (truth, lambda t: t)):
                    own = table.clone().requires_grad_()
                    losses = []
                    for x in batches:
                        loss = model(cut(x), own, mask if with_mask else None).pow(2).mean()
                        loss.backward()
                        losses.append(loss.item())
                    results.append([losses, own.grad])
                same(results[0], results[1])
                same_gradients(ours, truth)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, noise: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return self.layer(x.transpose(0, 1) + noise.t()) * weights.sum()


def check_whole_tensors_in_another_layout() -> None:
    """The rows are in dimension 1 of the batch and in dimension 0 of the noise, or the other way round."""
    torch.manual_seed(93)
    x = torch.randn(4, ROWS)
    y = torch.randint(0, 3, (ROWS,))
    for sizes in patterns(ROWS):
        with case(sizes):
            ours, truth = twins(Noisy)
            noise, weights = torch.randn(4, ROWS), torch.rand(ROWS)
            results = []
            for model, batch, goal in (
                (ours, samestep.shard(x, 1, sizes), samestep.shard(y, 0, sizes)),
                (truth, x, y),
            ):
                arguments = (batch, noise, weights)
                results.append(train(model, lambda m=model, a=arguments, g=goal: F.cross_entropy(m(*a), g)))
            same(results[0], results[1])


def check_tensors_that_differ_between_ranks_are_refused() -> None:
    x = torch.randn(ROWS, 4)
    for name, tensor in (("rows", torch.full((ROWS, 4), float(world().rank))), ("other", torch.ones(3) * world().rank)):
        with case(name):
            raises(SamestepError, name, lambda t=tensor: _Takes()(samestep.shard(x), t))
    with case("rounding"):
        _Takes()(samestep.shard(x), torch.ones(3) * (1 + 1e-7 * world().rank))


class _Takes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + other.sum()


def check_parts_on_several_devices_are_refused() -> None:
    class Placed:
        def __init__(self, device: str) -> None:
            self.device = torch.device(device)

    for places in (["cuda:0"], ["cpu", "cuda:1"], ["cpu"], ["meta", "cuda:0", "cuda:0"], []):
        refuse_several("Net", [Placed(p) for p in places])
    raises(SamestepError, "two devices", lambda: refuse_several("Net", [Placed("cuda:0"), Placed("cuda:1")]))
    try:
        refuse_several("Net", [Placed("cuda:0"), Placed("cuda:1"), Placed("cuda:1")])
    except SamestepError as error:
        true("Net" in str(error) and "1 on cuda:0 and 2 on cuda:1" in str(error), str(error))


def check_torch_func_computes_whole() -> None:
    """vmap and grad of torch.func over a batch: every rank computes all of it."""
    from torch.func import functional_call, grad, stack_module_state, vmap

    torch.manual_seed(94)
    x, y = torch.randn(ROWS, 4), torch.randint(0, 3, (ROWS,))

    def results(model: nn.Module, rows: torch.Tensor, labels: torch.Tensor) -> Any:
        weights = {k: v.detach() for k, v in model.named_parameters()}

        def of_row(w: Any, row: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(functional_call(model, w, (row.unsqueeze(0),)), label.unsqueeze(0))

        def of_all(w: Any) -> torch.Tensor:
            return F.cross_entropy(functional_call(model, w, (rows,)), labels)

        stacked, buffers = stack_module_state([model, model])
        ensemble = vmap(lambda p, b, v: functional_call(model, (p, b), (v,)), in_dims=(0, 0, None))
        return [
            grad(of_all)(weights),
            vmap(grad(of_row), in_dims=(None, 0, 0))(weights, rows, labels),
            ensemble(stacked, buffers, rows).detach(),
            vmap(lambda row: (row * row).sum())(rows),
        ]

    for sizes in patterns(ROWS):
        with case(sizes):
            ours, truth = twins(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))
            same(results(ours, samestep.shard(x, 0, sizes), samestep.shard(y, 0, sizes)), results(truth, x, y))
