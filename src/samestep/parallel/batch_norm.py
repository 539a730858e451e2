"""Batch norm with the statistics of the global batch, as one device computes them.

`torch.nn.functional.batch_norm` is replaced while Samestep runs; inside a region, in training mode, it combines the
ranks' means and squared deviations (Chan et al. 1979, so that uneven shards are exact and nothing cancels) and goes
on with torch's own kernels. The user's modules, their types and state_dict keys stay as they are.
`torch.nn.SyncBatchNorm` does the same on CUDA only; this serves the CPU too.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from samestep import world
from samestep.globalview import collectives
from samestep.globalview.tensor import WHERE
from samestep.parallel.stillness import own_reads

_torch_batch_norm = F.batch_norm


def batch_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Takes the place of `torch.nn.functional.batch_norm`."""
    if not (training and WHERE.region) or world.current().size == 1:
        return _torch_batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    mean, var, count = _global_statistics(input)
    if count <= 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {input.size()}")
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((var * (count / (count - 1))).to(running_var.dtype), momentum)
    return collectives.apply(_Normalize, input, weight, bias, mean, var, count, eps)


def _other_dims(x: torch.Tensor) -> list[int]:
    return [d for d in range(x.dim()) if d != 1]


def _global_statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Mean and biased variance per channel, and values per channel, of the global batch; float32 or wider."""
    here = world.current()
    with torch.no_grad():
        wide = x.detach() if x.dtype in (torch.float32, torch.float64) else x.detach().float()
        dims = _other_dims(wide)
        count = wide.numel() // wide.size(1)
        var, mean = torch.var_mean(wide, dims, correction=0)
        mine = torch.cat([mean, var, mean.new_tensor([float(count)])])
        everyone = here.all_gather(mine, 0, [mine.numel()] * here.size).view(here.size, -1).double()
        channels = x.size(1)
        means, variances, counts = everyone[:, :channels], everyone[:, channels:-1], everyone[:, -1:]
        total = counts.sum()
        global_mean = (means * counts).sum(0) / total
        spread = ((variances + (means - global_mean) ** 2) * counts).sum(0) / total
    with own_reads():
        return global_mean.to(mean.dtype), spread.to(mean.dtype), int(total)


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        mean: torch.Tensor,
        var: torch.Tensor,
        count: int,
        eps: float,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight, mean, var)
        ctx.count, ctx.eps = count, eps
        # In evaluation mode torch's kernel takes the statistics it is given.
        return _torch_batch_norm(x, mean, var, weight, bias, False, 0.0, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, weight, mean, var = ctx.saved_tensors
        grad = grad.contiguous() if grad.stride() != x.stride() else grad
        invstd = torch.rsqrt(var + ctx.eps)
        # Sums over this rank's rows of grad and of grad · x̂, by torch's kernel: the gradients of bias and weight.
        _, by_weight, by_bias = torch.ops.aten.native_batch_norm_backward(
            grad, x, torch.ones_like(mean), mean, var, mean, invstd, False, ctx.eps, [False, True, True]
        )
        grad_x = (
            _grad_input(ctx, grad, x, weight, mean, invstd, by_weight, by_bias) if ctx.needs_input_grad[0] else None
        )
        grad_weight = by_weight.to(weight.dtype) if weight is not None and ctx.needs_input_grad[1] else None
        grad_bias = by_bias.to(weight.dtype if weight is not None else grad.dtype) if ctx.needs_input_grad[2] else None
        return grad_x, grad_weight, grad_bias, None, None, None, None


def _grad_input(
    ctx: Any,
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    by_weight: torch.Tensor,
    by_bias: torch.Tensor,
) -> torch.Tensor:
    """scale · (grad − mean(grad) − x̂ · mean(grad · x̂)), the means over the global batch, as a·grad + b·x + c."""
    sums = world.current().all_reduce_(torch.cat([by_weight, by_bias]).to(mean.dtype)) / ctx.count
    mean_grad_xhat, mean_grad = sums.split(mean.numel())
    a = invstd if weight is None else invstd * weight.to(invstd.dtype)
    b = -a * invstd * mean_grad_xhat
    c = -a * mean_grad - b * mean
    shape = [1, -1] + [1] * (x.dim() - 2)
    a, b, c = (t.view(shape) for t in (a, b, c))
    wide = x if x.dtype == a.dtype else x.to(a.dtype)
    return torch.addcmul(c, wide, b).addcmul_(grad.to(a.dtype), a).to(x.dtype)


def install() -> None:
    """Let batch norm inside regions be global."""
    F.batch_norm = batch_norm
