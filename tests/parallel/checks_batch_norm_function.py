"""`F.batch_norm` itself: on ranks without a row, and read by TorchScript."""

from __future__ import annotations

import io

import torch
import torch.nn.functional as F
from torch import nn

from inside.claims import case, patterns, same, world
from samestep.globalview.tensor import WHERE


def check_ranks_without_a_row() -> None:
    """Inside a module a rank may have none left."""
    x, factor = torch.randn(5, 3, 2), torch.randn(5, 3, 2)
    for kind in (torch.float32, torch.float64):
        truth = x.to(kind).requires_grad_()
        stats = [torch.zeros(3, dtype=kind), torch.ones(3, dtype=kind)]
        out = F.batch_norm(truth, *stats, training=True)
        (expected,) = torch.autograd.grad((out * factor).sum(), truth)
        for sizes in patterns(5):
            mine = slice(sum(sizes[: world().rank]), sum(sizes[: world().rank + 1]))
            local = x[mine].to(kind).requires_grad_()
            running = [torch.zeros(3, dtype=kind), torch.ones(3, dtype=kind)]
            WHERE.region += 1
            try:
                got = F.batch_norm(local, *running, training=True)
                (grad,) = torch.autograd.grad((got * factor[mine]).sum(), local, retain_graph=True)
                (same_grad,) = torch.autograd.grad((got * factor[mine]).sum(), local, create_graph=True)
            finally:
                WHERE.region -= 1
            with case((kind, sizes)):
                same([got, grad, same_grad], [out[mine], expected[mine], expected[mine]], scale=10)
                same(running, stats, "running statistics")


def check_scripted_and_saved() -> None:
    """TorchScript reads the source of what it compiles, torch's batch norm too."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    plain = torch.randn(7, 3)
    net(plain)
    scripted = torch.jit.script(net.eval())
    same(scripted(plain), net(plain))
    same(torch.jit.load(io.BytesIO(scripted.save_to_buffer()))(plain), net(plain), "saved and loaded")

    @torch.jit.script
    def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, None, None, weight, None, True)

    same(normed(plain, torch.ones(3)), F.batch_norm(plain, None, None, torch.ones(3), None, True), "a function")
