"""Normalising by the statistics of the global batch: the arithmetic behind `samestep.parallel.batch_norm`.

The ranks' means and squared deviations are combined (Chan et al. 1979), so that uneven and empty shards are exact and
nothing cancels; what is pointwise is left to torch's own kernels. Gradients may be differentiated again, at any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from samestep import torch_private, world
from samestep.globalview import collectives
from samestep.parallel.in_step import meet

torch_batch_norm = F.batch_norm


class Statistics(NamedTuple):
    """Of one batch, per channel.

    Attributes:
        mean: shape (C,), float32 or wider.
        var: biased, same shape and dtype.
        values: how many there are per channel, a scalar tensor of the same dtype.
    """

    mean: torch.Tensor
    var: torch.Tensor
    values: torch.Tensor


def normalize(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, Statistics]:
    """`x` of this rank normalised by the statistics of all ranks' rows, and those statistics; collective."""
    out, mean, var, count = _Normalize.apply(x, weight, bias, eps)  # type: ignore[no-untyped-call]
    return out, Statistics(mean, var, count)


def local_statistics(x: torch.Tensor) -> Statistics:
    """Of this rank's rows; zeros if it has none."""
    wide = x.detach().to(_wide(x.dtype))
    count = wide.numel() // max(1, wide.size(1))
    if count == 0:
        zeros = wide.new_zeros(wide.size(1))
        return Statistics(zeros, zeros, wide.new_zeros(()))
    if wide.device.type == "cpu":  # as torch's own batch norm does, in a quarter of the time that var_mean takes
        mean, var = torch_private.channel_statistics(wide)
    else:
        var, mean = torch.var_mean(wide, _other_dims(wide), correction=0)
    return Statistics(mean, var, mean.new_tensor(float(count)))


def from_kernel(mean: torch.Tensor, unbiased: torch.Tensor, x: torch.Tensor) -> Statistics:
    """As torch's kernel leaves them: mean and unbiased variance of more than one value per channel."""
    dtype = _wide(mean.dtype)
    values = x.numel() // x.size(1)
    biased = unbiased.to(dtype) * ((values - 1) / values)
    return Statistics(mean.to(dtype), biased, biased.new_tensor(float(values)))


def combined(mine: list[Statistics]) -> list[Statistics]:
    """Of all ranks' rows, for several batches with one collective; they must be of one dtype and device."""
    return start_combining(mine)()


def start_combining(mine: list[Statistics]) -> Callable[[], list[Statistics]]:
    """The same, started; what it returns waits for it."""
    flat = torch.cat([t.reshape(-1) for statistics in mine for t in statistics])
    meet()
    everyone = world.current().start_gather(flat)
    return lambda: _split(everyone().double(), mine)


def _split(everyone: torch.Tensor, mine: list[Statistics]) -> list[Statistics]:
    found, start = [], 0
    for one in mine:
        channels = one.mean.numel()
        part = everyone[:, start : start + 2 * channels + 1]
        start += 2 * channels + 1
        found.append(Statistics(*(t.to(one.mean.dtype) for t in _of_all(part, channels))))
    return found


def _of_all(everyone: torch.Tensor, channels: int) -> Statistics:
    means, variances, counts = everyone[:, :channels], everyone[:, channels:-1], everyone[:, -1:]
    total = counts.sum()
    # Without any value there are no statistics: nan, as one device has it.
    mean = (means * counts).sum(0) / total
    var = ((variances + (means - mean) ** 2) * counts).sum(0) / total
    return Statistics(mean, var, total)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _other_dims(x: torch.Tensor) -> list[int]:
    return [d for d in range(x.dim()) if d != 1]


def _per_channel(t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return t.view([1, -1] + [1] * (x.dim() - 2))


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float) -> Any:
        mean, var, count = combined([local_statistics(x)])[0]
        # In evaluation mode torch's kernel takes the statistics it is given; beside half precision it wants all
        # parameters in single.
        w, b = (t if t is None else t.to(mean.dtype) for t in (weight, bias))
        return torch_batch_norm(x, mean, var, w, b, False, 0.0, eps), mean, var, count

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, bias, eps = inputs
        _, mean, var, count = output
        ctx.mark_non_differentiable(mean, var, count)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, mean, var, count)
        ctx.eps = eps
        ctx.dtypes = [t.dtype if t is not None else None for t in (x, weight, bias)]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None, *_: Any) -> Any:
        if grad is None:
            return None, None, None, None
        x, weight, mean, var, count = ctx.saved_tensors
        if torch.is_grad_enabled():
            found: Any = _gradients_to_differentiate(grad, x, weight, count, ctx.eps)
        else:
            found = _gradients(grad, x, weight, Statistics(mean, var, count), ctx.eps, ctx.needs_input_grad[0])
        wanted = [
            g.to(dtype) if g is not None and dtype is not None and needed else None
            for g, dtype, needed in zip(found, ctx.dtypes, ctx.needs_input_grad, strict=False)
        ]
        return *wanted, None


def _gradients(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, of_all: Statistics, eps: float, for_x: bool
) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
    """Of x, weight and bias, without history. Of x: scale · (grad − mean(grad) − x̂ · mean(grad · x̂)), global means."""
    mean, var, count = of_all
    invstd = torch.rsqrt(var + eps)
    scale = torch.ones_like(mean) if weight is None else weight.to(mean.dtype)
    scaled, by_weight, by_bias = _of_given_statistics(grad, x, scale, of_all, invstd, eps, for_x)
    if not for_x:
        return None, by_weight, by_bias
    sums = world.current().all_reduce_(torch.cat([by_weight, by_bias])) / count
    mean_grad_xhat, mean_grad = sums.split(mean.numel())
    a = invstd * scale
    b = -a * invstd * mean_grad_xhat
    c = -a * mean_grad - b * mean
    if scaled is not None:  # of x, a line per channel is left to add: what batch norm does in evaluation mode
        zeros, ones = torch.zeros_like(mean), torch.ones_like(mean)
        return scaled.add_(torch_batch_norm(x, zeros, ones, b, c, False, 0.0, 0.0)), by_weight, by_bias
    a, b, c = (_per_channel(t, x) for t in (a, b, c))
    return torch.addcmul(c, x.to(a.dtype), b).addcmul_(grad.to(a.dtype), a), by_weight, by_bias


def _of_given_statistics(
    grad: torch.Tensor,
    x: torch.Tensor,
    scale: torch.Tensor,
    of_all: Statistics,
    invstd: torch.Tensor,
    eps: float,
    for_x: bool,
) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
    """By torch's kernel, as if the statistics were numbers: scale · grad, and over this rank's rows the sums of
    grad · x̂ and of grad, which are the gradients of weight and bias. The first not in half precision, where adding to
    it would round twice.
    """
    mean, var, _ = of_all
    if x.numel() == 0:
        return None, torch.zeros_like(mean), torch.zeros_like(mean)
    grad = grad.contiguous() if grad.stride() != x.stride() else grad
    wanted = for_x and x.dtype == grad.dtype == mean.dtype
    scaled, by_weight, by_bias = torch.ops.aten.native_batch_norm_backward(
        grad, x, scale, mean, var, mean, invstd, False, eps, [wanted, True, True]
    )
    return scaled if wanted else None, by_weight.to(mean.dtype), by_bias.to(mean.dtype)


def _gradients_to_differentiate(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, count: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same from operations that autograd follows, the statistics' dependence on x included."""
    dtype, dims = count.dtype, _other_dims(x)
    x, grad = x.to(dtype), grad.to(dtype)
    centred = x - _per_channel(_total(x.sum(dims)) / count, x)
    invstd = torch.rsqrt(_total((centred * centred).sum(dims)) / count + eps)
    xhat = centred * _per_channel(invstd, x)
    by_weight, by_bias = (grad * xhat).sum(dims), grad.sum(dims)
    mean_grad_xhat, mean_grad = (_per_channel(_total(t) / count, x) for t in (by_weight, by_bias))
    scale = invstd if weight is None else invstd * weight.to(dtype)
    return _per_channel(scale, x) * (grad - mean_grad - xhat * mean_grad_xhat), by_weight, by_bias


class _Total(torch.autograd.Function):
    """The sum over the ranks, used on all of them: its gradient is the sum of what each rank's use gives."""

    @staticmethod
    def forward(local: torch.Tensor) -> torch.Tensor:
        return world.current().all_reduce_(world.fresh(local))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return _total(grad)


def _total(local: torch.Tensor) -> torch.Tensor:
    return collectives.apply(_Total, local)
