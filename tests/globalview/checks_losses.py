"""Every loss of `torch.nn.functional` with a `reduction`: value and gradients are those of the whole batch.

Each is called with its input sharded in every way and its target sharded alike, whole, or (where it is sharded)
another way; with class weights, ignored targets, label smoothing and positive weights where it has them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import samestep
from inside.claims import case, patterns, same, true, world

ROWS, CLASSES = 11, 4
#: How input and target are given.
FORMS = ("sharded alike", "whole target", "whole input", "cut otherwise")


@dataclass
class Loss:
    """One way to call a loss: the tensors with one row per sample come first, `fixed` is given whole by keyword."""

    function: Callable[..., torch.Tensor]
    tensors: list[torch.Tensor]
    fixed: dict[str, Any] = field(default_factory=dict)
    reductions: tuple[str, ...] = ("mean", "sum", "none")

    def __str__(self) -> str:
        kept = {k: "tensor" if isinstance(v, torch.Tensor) else v for k, v in self.fixed.items()}
        return f"{self.function.__name__}{[tuple(t.shape) for t in self.tensors]}{kept or ''}"


def _real(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def _share(*shape: int) -> torch.Tensor:
    return torch.rand(shape) * 0.9 + 0.05


def _classes(*shape: int, ignored: bool = False) -> torch.Tensor:
    target = torch.randint(0, CLASSES, shape)
    if ignored:
        target.view(-1)[::3] = -100
    return target


def classification() -> Iterator[Loss]:
    """`cross_entropy` and `nll_loss` in all their forms."""
    torch.manual_seed(5)
    weight = torch.rand(CLASSES) + 0.1
    for shape in ((), (3,), (2, 3)):
        scores, logs = _real(ROWS, CLASSES, *shape), _real(ROWS, CLASSES, *shape).log_softmax(1)
        for ignored in (False, True):
            target = _classes(ROWS, *shape, ignored=ignored)
            for fixed in ({}, {"weight": weight}):
                yield Loss(F.cross_entropy, [scores, target], dict(fixed))
                yield Loss(F.cross_entropy, [scores, target], {**fixed, "label_smoothing": 0.2})
                yield Loss(F.nll_loss, [logs, target], dict(fixed))
        for index in (0, 2, 255):
            target = _classes(ROWS, *shape)
            target.view(-1)[::4] = index
            yield Loss(F.cross_entropy, [scores, target], {"ignore_index": index})
            yield Loss(F.nll_loss, [logs, target], {"ignore_index": index, "weight": weight})
        shares = _real(ROWS, CLASSES, *shape).softmax(1)
        for fixed in ({}, {"weight": weight}, {"label_smoothing": 0.1}, {"weight": weight, "label_smoothing": 0.1}):
            yield Loss(F.cross_entropy, [scores, shares], dict(fixed))
    yield Loss(F.cross_entropy, [_real(ROWS, CLASSES), torch.full((ROWS,), -100)])  # all ignored: nan, as on one device
    one = torch.full((ROWS,), -100)
    one[-1] = 1
    yield Loss(F.cross_entropy, [_real(ROWS, CLASSES), one])  # all the targets that count are on one rank
    zero = torch.tensor([1.0, 0, 1, 1])
    yield Loss(F.cross_entropy, [_real(ROWS, CLASSES), torch.ones(ROWS, dtype=torch.int64)], {"weight": zero})
    yield Loss(F.cross_entropy, [_real(ROWS, CLASSES).double(), _classes(ROWS)])
    yield Loss(F.cross_entropy, [_real(ROWS, CLASSES).bfloat16(), _classes(ROWS)])
    yield Loss(F.nll_loss, [_real(ROWS, CLASSES), _classes(ROWS).to(torch.uint8)])


def elementwise() -> Iterator[Loss]:
    """Losses that are a mean over all elements."""
    torch.manual_seed(6)
    for shape in ((ROWS,), (ROWS, 1), (ROWS, 3), (ROWS, 2, 3)):
        a, b = _real(*shape), _real(*shape)
        for function in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss):
            yield Loss(function, [a, b])
        yield Loss(F.smooth_l1_loss, [a, b], {"beta": 0.3})
        yield Loss(F.huber_loss, [a, b], {"delta": 0.4})
        signs = b.sign()
        yield Loss(F.soft_margin_loss, [a, signs])
        yield Loss(F.hinge_embedding_loss, [a, signs], {"margin": 0.7})
        yield Loss(F.margin_ranking_loss, [a, b, signs], {"margin": 0.1})
        yield Loss(F.poisson_nll_loss, [a, b.abs()], {"log_input": True, "full": True})
        yield Loss(F.poisson_nll_loss, [a.abs() + 1, b.abs()], {"log_input": False})
        yield Loss(F.gaussian_nll_loss, [a, b, _share(*shape)], {"full": True})
        shares = _share(*shape)
        yield Loss(F.binary_cross_entropy, [shares, _share(*shape)])
        yield Loss(F.binary_cross_entropy, [shares, _share(*shape)], {"weight": _share(*shape)})
        yield Loss(F.binary_cross_entropy_with_logits, [a, _share(*shape)])
        yield Loss(F.binary_cross_entropy_with_logits, [a, _share(*shape)], {"pos_weight": _share(*shape[1:])})
        both = {"pos_weight": _share(shape[-1]), "weight": _share(*shape)}
        yield Loss(F.binary_cross_entropy_with_logits, [a, _share(*shape)], both)
        every = ("mean", "sum", "none", "batchmean")
        for log_target in (False, True):
            target = _share(*shape).log() if log_target else _share(*shape)
            yield Loss(F.kl_div, [shares.log(), target], {"log_target": log_target}, every)
    yield Loss(F.binary_cross_entropy, [_share(ROWS, 3), _share(ROWS, 3)], {"weight": _share(3)})
    yield Loss(F.binary_cross_entropy, [_share(ROWS, 3), _share(ROWS, 3)], {"weight": _share(ROWS, 1)})
    yield Loss(F.binary_cross_entropy_with_logits, [_real(ROWS, 3), _share(ROWS, 3)], {"weight": _share(ROWS, 1)})
    for function in (F.mse_loss, F.l1_loss, F.huber_loss):
        yield Loss(function, [_real(ROWS, 3), _real(ROWS, 3)], {"weight": _share(ROWS, 3)})
    yield Loss(F.mse_loss, [_real(ROWS, 1), _real(ROWS)])  # broadcast to rows × rows, as people do by mistake
    yield Loss(F.mse_loss, [_real(ROWS), _real(ROWS, 1)])
    yield Loss(F.l1_loss, [_real(ROWS, 3), _real(1, 3)])
    yield Loss(F.gaussian_nll_loss, [_real(ROWS, 3), _real(ROWS, 3), _share(ROWS, 1)])
    yield Loss(F.gaussian_nll_loss, [_real(ROWS, 3), _real(ROWS, 3), _share(ROWS)])
    yield Loss(F.mse_loss, [_real(ROWS, 3).half(), _real(ROWS, 3).half()])
    yield Loss(F.mse_loss, [_real(ROWS, 3).double(), _real(ROWS, 3).double()])


def rowwise() -> Iterator[Loss]:
    """Losses with one value per row."""
    torch.manual_seed(7)
    a, b, c = _real(ROWS, 5), _real(ROWS, 5), _real(ROWS, 5)
    signs = torch.randint(0, 2, (ROWS,)) * 2 - 1
    yield Loss(F.cosine_embedding_loss, [a, b, signs], {"margin": 0.2})
    yield Loss(F.triplet_margin_loss, [a, b, c], {"margin": 0.6, "swap": True})
    yield Loss(F.triplet_margin_loss, [a, b, c], {"p": 1.5})
    yield Loss(F.triplet_margin_loss, [a.view(ROWS, 1, 5), b.view(ROWS, 1, 5), c.view(ROWS, 1, 5)])
    yield Loss(F.triplet_margin_with_distance_loss, [a, b, c], {"margin": 0.6})
    yield Loss(F.multi_margin_loss, [_real(ROWS, CLASSES), _classes(ROWS)])
    yield Loss(F.multi_margin_loss, [_real(ROWS, CLASSES), _classes(ROWS)], {"p": 2, "weight": torch.rand(CLASSES)})
    yield Loss(F.multilabel_soft_margin_loss, [_real(ROWS, CLASSES), torch.rand(ROWS, CLASSES).round()])
    fixed = {"weight": torch.rand(CLASSES)}
    yield Loss(F.multilabel_soft_margin_loss, [_real(ROWS, CLASSES), torch.rand(ROWS, CLASSES).round()], fixed)
    labels = torch.tensor([[3, 0, -1, 1]] * ROWS)
    yield Loss(F.multilabel_margin_loss, [_real(ROWS, CLASSES), labels])


def _run(loss: Loss, arguments: list[Any], leaves: list[torch.Tensor], fixed: dict[str, Any]) -> list[Any]:
    value = loss.function(*arguments, **fixed)
    if value.requires_grad:
        # Not all rows alike, so that a wrong row would be seen.
        factor = torch.linspace(0.5, 2, value.numel()).view(value.shape).to(value.dtype)
        (value * factor).sum().backward()
    return [value.detach(), [leaf.grad for leaf in leaves]]


def _leaves(tensors: list[torch.Tensor], all_of_them: bool) -> list[torch.Tensor]:
    tracked = [t.is_floating_point() and (i == 0 or all_of_them) for i, t in enumerate(tensors)]
    return [t.detach().clone().requires_grad_(flag) for t, flag in zip(tensors, tracked, strict=True)]


def _arguments(leaves: list[torch.Tensor], sizes: tuple[int, ...], form: str) -> list[Any]:
    other = tuple(reversed(sizes))
    result: list[Any] = []
    for number, leaf in enumerate(leaves):
        if leaf.size(0) != ROWS or (number > 0 and form == "whole target") or (number == 0 and form == "whole input"):
            result.append(leaf)
        else:
            result.append(samestep.shard(leaf, 0, other if number > 0 and form == "cut otherwise" else sizes))
    return result


#: Losses whose target takes no gradient.
_TARGET_HAS_NONE = {
    F.nll_loss,
    F.multi_margin_loss,
    F.multilabel_margin_loss,
    F.soft_margin_loss,
    F.hinge_embedding_loss,
}


def _judge(loss: Loss) -> None:
    wide = any(t.dtype in (torch.half, torch.bfloat16) for t in loss.tensors)
    every = loss.function not in _TARGET_HAS_NONE
    for reduction in loss.reductions:
        fixed = {**loss.fixed, "reduction": reduction}
        plain_leaves = _leaves(loss.tensors, every)
        truth = _run(loss, plain_leaves, plain_leaves, fixed)
        for sizes in patterns(ROWS):
            for form in FORMS if reduction == "mean" else FORMS[:2]:
                with case((str(loss), reduction, sizes, form)):
                    leaves = _leaves(loss.tensors, every)
                    same(_run(loss, _arguments(leaves, sizes, form), leaves, fixed), truth, scale=2 if wide else 1)


def check_classification_losses() -> None:
    for loss in classification():
        _judge(loss)


def check_elementwise_losses() -> None:
    for loss in elementwise():
        _judge(loss)


def check_rowwise_losses() -> None:
    for loss in rowwise():
        _judge(loss)


def check_no_loss_with_a_reduction_is_left_out() -> None:
    judged = {loss.function for table in (classification, elementwise, rowwise) for loss in table()} | {F.ctc_loss}
    for name, function in vars(F).items():
        if name.startswith("_") or not inspect.isfunction(function) or function.__module__ != F.__name__:
            continue
        parameters = inspect.signature(function).parameters
        if "reduction" in parameters and function not in judged:
            # The fused loss of recent releases; nobody can call it who does not know what it is.
            true(name in ("linear_cross_entropy",), f"{name} has a reduction and is not judged")


def check_ctc_loss() -> None:
    torch.manual_seed(9)
    logs = torch.randn(12, ROWS, 6).log_softmax(2)
    targets = torch.randint(1, 6, (ROWS, 4))
    lengths = torch.randint(8, 13, (ROWS,))
    target_lengths = torch.randint(1, 5, (ROWS,))
    for reduction in ("mean", "sum", "none"):
        whole = logs.clone().requires_grad_()
        truth = F.ctc_loss(whole, targets, lengths, target_lengths, reduction=reduction)
        truth.sum().backward()
        for sizes in patterns(ROWS):
            with case((reduction, sizes)):
                leaf = logs.clone().requires_grad_()
                t, n, m = (samestep.shard(v, 0, sizes) for v in (targets, lengths, target_lengths))
                value = F.ctc_loss(samestep.shard(leaf, 1, sizes), t, n, m, reduction=reduction)
                value.sum().backward()
                same([value.detach(), leaf.grad], [truth.detach(), whole.grad])


def check_loss_modules() -> None:
    torch.manual_seed(10)
    scores, target, weight = _real(ROWS, CLASSES), _classes(ROWS, ignored=True), torch.rand(CLASSES)
    pairs = [
        (nn.CrossEntropyLoss(weight=weight), target),
        (nn.CrossEntropyLoss(ignore_index=1, label_smoothing=0.1), target.clamp(min=0)),
        (nn.NLLLoss(weight=weight, reduction="sum"), target),
        (nn.BCEWithLogitsLoss(pos_weight=weight), _share(ROWS, CLASSES)),
        (nn.MSELoss(), _real(ROWS, CLASSES)),
        (nn.KLDivLoss(reduction="batchmean"), _share(ROWS, CLASSES)),
        (nn.MultiLabelSoftMarginLoss(), torch.rand(ROWS, CLASSES).round()),
        (nn.GaussianNLLLoss(), _real(ROWS, CLASSES)),
    ]
    for module, goal in pairs:
        for sizes in patterns(ROWS):
            for whole_target in (False, True):
                with case((type(module).__name__, sizes, whole_target)):
                    results = []
                    for sharded in (True, False):
                        leaf = scores.clone().requires_grad_()
                        x = samestep.shard(leaf, 0, sizes) if sharded else leaf
                        y = samestep.shard(goal, 0, sizes) if sharded and not whole_target else goal
                        variance = (x.detach() ** 2 + 0.1,) if isinstance(module, nn.GaussianNLLLoss) else ()
                        value = module(x, y, *variance)
                        value.backward()
                        results.append([value.detach(), leaf.grad])
                    same(results[0], results[1])


def check_ignored_targets_are_counted_anew_after_a_write() -> None:
    scores, target = _real(ROWS, CLASSES), _classes(ROWS, ignored=True)
    for sizes in patterns(ROWS):
        with case(sizes):
            y, truth = samestep.shard(target.clone(), 0, sizes), target.clone()
            x = samestep.shard(scores, 0, sizes)
            same(F.cross_entropy(x, y), F.cross_entropy(scores, truth), "fresh")
            view, plain_view = y.view(-1, 1), truth.view(-1, 1)
            for t in (y, truth):
                t[t == 2] = -100
            same(F.cross_entropy(x, y), F.cross_entropy(scores, truth), "masked write")
            same(F.cross_entropy(x, view.squeeze(1)), F.cross_entropy(scores, plain_view.squeeze(1)), "older view")
            for t in (y, truth):
                t.masked_fill_(t == 1, -100)
                t[: ROWS // 2] = 0
            same(F.cross_entropy(x, y), F.cross_entropy(scores, truth), "slice write")
            same(F.cross_entropy(x, y.clone()), F.cross_entropy(scores, truth), "clone")
            same(F.cross_entropy(x[3:], y[3:]), F.cross_entropy(scores[3:], truth[3:]), "slice")
            keep, plain_keep = y != 0, truth != 0
            same(F.cross_entropy(x[keep], y[keep]), F.cross_entropy(scores[plain_keep], truth[plain_keep]), "rows kept")
            y.data.fill_(1)
            truth.data.fill_(1)
            same(F.cross_entropy(x, y), F.cross_entropy(scores, truth), "write through .data")
            samestep.local(y).fill_(-100 if world().rank == 0 else 2)
            truth[:] = 2
            truth[: sizes[0]] = -100
            same(F.cross_entropy(x, y), F.cross_entropy(scores, truth), "write into the block")
