"""Sums over the ranks that are not added up yet (losses, counts) behave as the numbers that they stand for."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import samestep
from inside.claims import case, gathers, same, shards, true, twins


def _data(rows: int = 15) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(11)
    return torch.randn(rows, 4), torch.randint(0, 3, (rows,))


def check_count_of_positive_elements() -> None:
    plain = _data()[0]
    for sizes, x in shards(plain):
        with case(sizes):
            same((x > 0).sum().item(), (plain > 0).sum().item())
            same(int((x > 0).sum()), int((plain > 0).sum()))
            same(((x > 0).sum() > 20).item(), ((plain > 0).sum() > 20).item())


def check_sums_and_means_over_every_choice_of_dimensions() -> None:
    torch.manual_seed(1)
    plain = torch.randn(7, 3, 5)
    dims: list[object] = [None, 0, 1, -1, (0, 1), (0, 2), (1, 2), (0, 1, 2), [0], (-3,)]
    for shard_dim in (0, 1):
        for sizes, x in shards(plain, shard_dim):
            for dim in dims:
                for keep in (False, True):
                    with case((shard_dim, sizes, dim, keep)):
                        kwargs = {} if dim is None else {"dim": dim, "keepdim": keep}
                        same(x.sum(**kwargs), plain.sum(**kwargs), "sum")
                        same(x.mean(**kwargs), plain.mean(**kwargs), "mean")
                        same(torch.sum(x > 0, **kwargs), torch.sum(plain > 0, **kwargs), "sum of bools")
            with case((shard_dim, sizes, "dtype")):
                same(x.sum(dtype=torch.float64), plain.sum(dtype=torch.float64))
                same(x.mean(0, dtype=torch.float64), plain.mean(0, dtype=torch.float64))
                same((x > 0).float().mean(), (plain > 0).float().mean())
                same((x * 9).int().sum(0, dtype=torch.int32), (plain * 9).int().sum(0, dtype=torch.int32))


def check_accuracy_is_exactly_that_of_one_device() -> None:
    predicted = torch.tensor([0] * 13 + [1] * 2)
    target = torch.zeros(15, dtype=torch.int64)
    truth = (predicted == target).float().mean().item()
    for sizes, p in shards(predicted):
        with case(sizes):
            t = samestep.shard(target, 0, sizes)
            true((p == t).float().mean().item() == truth == torch.tensor(13 / 15).item(), "mean of hits is not 13/15")
            true(((p == t).sum() / len(t)).item() == truth, "hits / len is not 13/15")
            true((p == t).sum().item() / t.size(0) == 13 / 15, "hits.item() / size is not 13/15")
            true(f"{(p == t).sum()}/{t.numel()}" == "13/15", f"printed as {(p == t).sum()}")
            true(f"{(p == t).float().mean():.6f}" == f"{13 / 15:.6f}", "printed accuracy differs")
            true(p.eq(t).sum().mul(100.0).div(15).item() == (predicted.eq(target).sum().mul(100.0).div(15)).item(), "%")
            true(p.eq(target).sum().item() == 13, "against the whole target")


def check_integer_accumulation() -> None:
    predicted, target = torch.arange(15) % 3, torch.arange(15) % 4
    hits = (predicted == target).sum()
    for sizes, p in shards(predicted):
        with case(sizes):
            t = samestep.shard(target, 0, sizes)
            correct = 0
            for _ in range(3):
                correct += (p == t).sum()
            same(correct, 3 * hits, "0 += Partial")
            correct = 0
            for _ in range(3):
                correct += (p == t).sum().item()
            same(correct, 3 * int(hits), "0 += item()")
            whole = torch.tensor(5)
            whole += (p == t).sum()
            same(whole, 5 + hits, "whole += Partial")
            kept = torch.zeros((), dtype=torch.int64)
            for _ in range(2):
                kept = kept + (p == t).sum()
            same(kept, 2 * hits, "whole + Partial")
            same((p == t).sum() + 1, hits + 1, "+ 1")
            same(1 - (p == t).sum(), 1 - hits, "1 -")
            same((p == t).sum() * 2 - (p != t).sum(), hits * 2 - (15 - hits), "arithmetic")
            same((p == t).sum() // 2, hits // 2, "//")
            same((p == t).sum() % 4, hits % 4, "%")
            same(-(p == t).sum(), -hits, "neg")
            counter = (p == t).sum()
            counter += 7
            same(counter, hits + 7, "Partial += int")
            counter = (p == t).sum()
            counter += whole
            same(counter, hits + 5 + hits, "Partial += whole")
            counter = (p == t).sum()
            counter *= 3
            same(counter, hits * 3, "Partial *= int")


def _loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def _penalty(model: nn.Module) -> torch.Tensor:
    return sum((p**2).sum() for p in model.parameters())  # type: ignore[return-value]


EXPRESSIONS = {
    "loss + 0.1 * penalty": lambda loss, other, penalty: loss + 0.1 * penalty,
    "0.1 * penalty + loss": lambda loss, other, penalty: 0.1 * penalty + loss,
    "loss - penalty": lambda loss, other, penalty: loss - penalty,
    "penalty - loss": lambda loss, other, penalty: penalty - loss,
    "torch.add(loss, penalty, alpha)": lambda loss, other, penalty: torch.add(loss, penalty, alpha=0.3),
    "loss / 3": lambda loss, other, penalty: loss / 3,
    "2 * loss": lambda loss, other, penalty: 2 * loss,
    "-loss": lambda loss, other, penalty: -loss,
    "loss * other": lambda loss, other, penalty: loss * other,
    "loss * loss": lambda loss, other, penalty: loss * loss,
    "loss * penalty": lambda loss, other, penalty: loss * penalty,
    "penalty * loss": lambda loss, other, penalty: penalty * loss,
    "loss / penalty": lambda loss, other, penalty: loss / penalty,
    "penalty / loss": lambda loss, other, penalty: penalty / loss,
    "1 / loss": lambda loss, other, penalty: 1 / loss,
    "loss / other": lambda loss, other, penalty: loss / other,
    "loss + other": lambda loss, other, penalty: loss + other,
    "loss - other": lambda loss, other, penalty: loss - other,
    "loss + 1": lambda loss, other, penalty: loss + 1,
    "1 - loss": lambda loss, other, penalty: 1 - loss,
    "loss + True": lambda loss, other, penalty: loss + True,
    "sqrt": lambda loss, other, penalty: loss.sqrt(),
    "exp": lambda loss, other, penalty: torch.exp(loss),
    "abs": lambda loss, other, penalty: (loss - 10).abs(),
    "**2": lambda loss, other, penalty: loss**2,
    "2**": lambda loss, other, penalty: 2**loss,
    "flood": lambda loss, other, penalty: (loss - 0.5).abs() + 0.5,
    "max(loss, other)": lambda loss, other, penalty: torch.max(loss, other),
    "stack mean": lambda loss, other, penalty: torch.stack([loss, other, 3 * loss]).mean(),
    "stack with whole": lambda loss, other, penalty: torch.stack([loss, other, penalty]).sum(),
    "stack prod": lambda loss, other, penalty: torch.stack([loss, other]).prod(),
    "sum of list": lambda loss, other, penalty: sum([loss, other, loss]) / 3,
    "to double": lambda loss, other, penalty: loss.double() * 2,
    "cast and add": lambda loss, other, penalty: loss.to(torch.float64) + penalty.double(),
    "where": lambda loss, other, penalty: torch.where(loss > other, loss, other),
    "clamp": lambda loss, other, penalty: loss.clamp(min=0.1),
    "sum of scalar": lambda loss, other, penalty: loss.sum() + other.mean(),
    "lerp": lambda loss, other, penalty: torch.lerp(loss, other, 0.25),
    "addcmul": lambda loss, other, penalty: torch.addcmul(loss, other, penalty, value=0.5),
    "detached factor": lambda loss, other, penalty: loss * (penalty.detach() / other.detach()),
    "view": lambda loss, other, penalty: loss.view(1).squeeze(0) + other.reshape(1, 1).squeeze(),
    "unsqueeze cat": lambda loss, other, penalty: torch.cat([loss.unsqueeze(0), other.unsqueeze(0)]).sum(),
    "item factor": lambda loss, other, penalty: loss * other.item(),
    "complex": lambda loss, other, penalty: (loss * 1j).abs(),
    "numpy factor": lambda loss, other, penalty: loss * other.detach().numpy().item(),
    "float64 whole factor": lambda loss, other, penalty: loss * torch.tensor(2.0, dtype=torch.float64),
    "vector whole factor": lambda loss, other, penalty: (loss * torch.arange(3.0)).sum(),
    "plus vector": lambda loss, other, penalty: (loss + torch.arange(3.0)).sum(),
    "plus float64 scalar": lambda loss, other, penalty: loss + torch.tensor(2.0, dtype=torch.float64),
    "inf": lambda loss, other, penalty: loss + float("inf"),
}


def check_expressions_of_losses_with_gradients() -> None:
    x, y = _data()
    for name, expression in EXPRESSIONS.items():
        for sizes, sx in shards(x):
            with case((name, sizes)):
                ours, plain = twins(lambda: nn.Linear(4, 3))
                results = []
                for model, data, target in ((ours, sx, samestep.shard(y, 0, sizes)), (plain, x, y)):
                    loss = _loss(model, data, target)
                    other = (model(data) ** 2).mean()
                    result = expression(loss, other, _penalty(model))
                    result.backward()
                    results.append(result.detach())
                # A single-precision loss stays as inexact as it is when it is cast to double.
                same(results[0], results[1], "value", scale=1e5 if results[1].dtype is torch.float64 else 1)
                same([p.grad for p in ours.parameters()], [p.grad for p in plain.parameters()], "gradient")


def check_loss_accumulated_in_place() -> None:
    x, y = _data()
    for sizes, sx in shards(x):
        with case(sizes):
            ours, plain = twins(lambda: nn.Linear(4, 3))
            results = []
            for model, data, target in ((ours, sx, samestep.shard(y, 0, sizes)), (plain, x, y)):
                loss = _loss(model, data, target)
                loss += 0.5 * (model(data) ** 2).sum()
                loss += 0.1 * _penalty(model)
                loss += 1
                loss -= 0.25
                loss *= 2
                loss /= 3
                loss.backward()
                results.append(loss.detach())
            same(results[0], results[1], "value")
            same([p.grad for p in ours.parameters()], [p.grad for p in plain.parameters()], "gradient")


def check_running_total_of_detached_losses() -> None:
    x, y = _data()
    for sizes, sx in shards(x):
        with case(sizes):
            ours, plain = twins(lambda: nn.Linear(4, 3))
            totals = []
            for model, data, target in ((ours, sx, samestep.shard(y, 0, sizes)), (plain, x, y)):
                total = torch.zeros(1)
                running = 0.0
                tensor_total = torch.zeros(())
                best = float("inf")
                for factor in (1.0, 2.0, 3.0):
                    loss = _loss(model, data * factor, target)
                    total += loss.detach()
                    running += loss.item() * len(data)
                    tensor_total = tensor_total + loss.data
                    best = min(best, loss.item())
                    best = min(best, float(loss))
                totals.append([total, running, tensor_total, best])
            same(totals[0], totals[1])


def check_comparisons_and_branches() -> None:
    x, _ = _data()
    for sizes, sx in shards(x):
        with case(sizes):
            loss, plain = (sx**2).mean(), (x**2).mean()
            same(bool(loss > 0.5), bool(plain > 0.5), "> number")
            same(bool(loss < plain + 1), True, "< whole")
            same(bool(loss == loss), True, "== itself")
            same(bool(torch.isnan(loss)), False, "isnan")
            same(bool(torch.isfinite(loss).all()), True, "isfinite")
            same(min(loss, (sx**2).sum()), min(plain, (x**2).sum()), "min()")
            same(max([loss, (sx**2).sum()]), max([plain, (x**2).sum()]), "max()")
            same(sorted([float(loss), 0.1]), sorted([float(plain), 0.1]), "sorted")
            same(torch.allclose(loss, plain), True, "allclose")
            same(round(loss.item(), 4), round(plain.item(), 4), "round")


def check_a_value_looked_at_twice_costs_one_collective() -> None:
    x, _ = _data()
    sx = samestep.shard(x)
    loss = (sx**2).mean()
    with gathers() as counted:
        first = loss.item()
        second = loss.item()
        text = f"{loss:.4f}"
        higher = loss > 0
    true(counted.number == 1, f"{counted.number} collectives: {counted.operations}")
    true(first == second and text == f"{first:.4f}" and bool(higher), "the looks disagree")


def check_a_value_looked_at_is_forgotten_when_it_is_changed() -> None:
    x, _ = _data()
    for sizes, sx in shards(x):
        with case(sizes):
            loss, plain = (sx**2).mean(), (x**2).mean()
            same(loss.item(), plain.item())
            loss += 1
            plain += 1
            same(loss.item(), plain.item(), "after += 1")
            loss.mul_(3)
            plain.mul_(3)
            same(loss.item(), plain.item(), "after mul_")
            loss.zero_()
            same(loss.item(), 0.0, "after zero_")
            loss += (sx**2).sum()
            same(loss, (x**2).sum(), "after zero_ and += Partial")
            loss.fill_(2.0)
            same(loss.item(), 2.0, "after fill_")
            loss.copy_((sx**2).sum())
            same(loss, (x**2).sum(), "after copy_")


def check_backward_after_looking() -> None:
    x, y = _data()
    for sizes, sx in shards(x):
        with case(sizes):
            ours, plain = twins(lambda: nn.Linear(4, 3))
            for model, data, target in ((ours, sx, samestep.shard(y, 0, sizes)), (plain, x, y)):
                loss = _loss(model, data, target)
                _ = loss.item()
                _ = str(loss)
                (loss * loss.item() + loss.sqrt()).backward()
            same([p.grad for p in ours.parameters()], [p.grad for p in plain.parameters()], "gradient")


def check_vector_sums_stay_right_through_use() -> None:
    x, _ = _data()
    for sizes, sx in shards(x):
        with case(sizes):
            total, plain = sx.sum(0), x.sum(0)
            same(total / total.norm(), plain / plain.norm(), "normalised")
            same(total[1], plain[1], "index")
            same(total[:2] * 2, plain[:2] * 2, "slice")
            same(total.view(2, 2).t(), plain.view(2, 2).t(), "view and t")
            same(sx - sx.mean(0), x - x.mean(0), "centred")
            same((sx - sx.mean(0, keepdim=True)) / sx.std(0), (x - x.mean(0, keepdim=True)) / x.std(0), "standardised")
            same(sx.t() @ sx, x.t() @ x, "gram matrix")
            same((sx.t() @ sx) / 3 + torch.eye(4), (x.t() @ x) / 3 + torch.eye(4), "gram matrix plus whole")
            same(torch.stack([total, total * 2]).sum(0), torch.stack([plain, plain * 2]).sum(0), "stack")
            same(torch.cat([total, plain]), torch.cat([plain, plain]), "cat with whole")
            same(total.tolist(), plain.tolist(), "tolist")
            same(total.argmax().item(), plain.argmax().item(), "argmax")
            total[0] = 5
            plain[0] = 5
            same(total, plain, "setitem")


def check_integer_sums_in_narrow_types() -> None:
    values = torch.full((9,), 100, dtype=torch.uint8)
    for sizes, x in shards(values):
        with case(sizes):
            same(x.sum(), values.sum(), "sum of uint8")
            same(x.sum(dtype=torch.uint8), values.sum(dtype=torch.uint8), "sum in uint8")
            same(x.sum(dtype=torch.int16), values.sum(dtype=torch.int16), "sum in int16")
            same(x.float().mean(), values.float().mean(), "mean")
            same(x.to(torch.bool).sum(), values.bool().sum(), "sum of bool")
            same(x.half().mean(), values.half().mean(), "mean in half")
            same(x.bfloat16().sum(), values.bfloat16().sum(), "sum in bfloat16", scale=2)
            same(x.half().sum(), values.half().sum(), "sum in half")
