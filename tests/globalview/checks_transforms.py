"""`torch.func`, forward-mode differentiation and their kind over functions that use a sharded tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
import torch.utils.checkpoint
from torch.func import functional_call

from inside.claims import case, same, shards

ROWS = 7
W = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
MANY = torch.randn(5, 4, generator=torch.Generator().manual_seed(2))


def _data() -> torch.Tensor:
    return torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(0))


def _dual(x: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(forward_ad.make_dual(x, torch.ones(ROWS, 4)).sin()).tangent


def _vjp(x: torch.Tensor) -> Any:
    value, pull = torch.func.vjp(torch.sin, x)
    return value, pull(x * 2)


def _linearized(x: torch.Tensor) -> Any:
    value, push = torch.func.linearize(torch.sin, x)
    return value, push(x * 2)


def _module(x: torch.Tensor) -> Any:
    model = torch.nn.Linear(4, 3)
    return functional_call(model, {"weight": W.t() * 2, "bias": torch.ones(3)}, (x,))


def _kept_elsewhere(x: torch.Tensor) -> Any:
    leaf = W.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        value = ((x @ leaf) ** 2).sum()
    value.backward()
    return leaf.grad


def _checkpointed(reentrant: bool) -> Callable[[torch.Tensor], Any]:
    def program(x: torch.Tensor) -> Any:
        leaf, batch = W.clone().requires_grad_(), x.detach().requires_grad_()
        block = torch.utils.checkpoint.checkpoint
        out = block(lambda v: (v @ leaf).relu(), batch, use_reentrant=reentrant)
        (out**2).sum().backward()
        return leaf.grad, batch.grad

    return program


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "grad": lambda x: torch.func.grad(lambda v: (v**2).sum())(x),
    "grad, batch in a closure": lambda x: torch.func.grad(lambda w: (x @ w).pow(2).sum())(W),
    "grad and value": lambda x: torch.func.grad_and_value(lambda w: (x @ w).pow(2).sum())(W),
    "vmap over rows": lambda x: torch.vmap(lambda row: (row * 2).sum())(x),
    "vmap, batch in a closure": lambda x: torch.vmap(lambda v: (x * v).sum(1))(MANY),
    "jvp": lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones(ROWS, 4),)),
    "jvp, batch in a closure": lambda x: torch.func.jvp(lambda w: (x @ w).sin(), (W,), (torch.ones(4, 3),)),
    "vjp": _vjp,
    "linearize": _linearized,
    "jacrev": lambda x: torch.func.jacrev(lambda v: v.sin().sum(0))(x),
    "jacfwd": lambda x: torch.func.jacfwd(lambda v: v.sin().sum(0))(x),
    "hessian": lambda x: torch.func.hessian(lambda v: (v**3).sum())(x),
    "gradients of each sample": lambda x: torch.vmap(
        torch.func.grad(lambda w, row: ((row @ w) ** 2).sum()), in_dims=(None, 0)
    )(W, x),
    "autograd.functional.jacobian": lambda x: torch.autograd.functional.jacobian(lambda v: v.sin().sum(0), x),
    "autograd.functional.vjp": lambda x: torch.autograd.functional.vjp(torch.sin, x, x * 3),
    "dual numbers": _dual,
    "functional_call": _module,
    "saved_tensors_hooks": _kept_elsewhere,
    "checkpoint": _checkpointed(False),
    "reentrant checkpoint": _checkpointed(True),
}


def check_transforms_have_the_plain_value() -> None:
    plain = _data()
    for name, program in PROGRAMS.items():
        expected = program(plain.clone())
        for sizes, x in shards(plain):
            with case((name, sizes)):
                same(program(x), expected, name)


def check_gradients_flow_out_of_a_transform() -> None:
    """A batch in the closure of a transformed function takes the gradient of what comes out."""
    programs: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "grad": lambda x: torch.func.grad(lambda w: (x @ w).pow(2).sum())(W).sum(),
        "vmap": lambda x: torch.vmap(lambda v: (x * v).sin().sum(1))(MANY).sum(),
        "argument": lambda x: torch.func.grad(lambda v: (v**3).sum())(x).sum(),
    }
    for name, program in programs.items():
        leaf = _data().requires_grad_()
        program(leaf * 1).backward()
        for sizes, _ in shards(_data()):
            with case((name, sizes)):
                mine = _data().requires_grad_()
                program(_shard(mine * 1, sizes)).backward()
                same(mine.grad, leaf.grad, name)


def _shard(x: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    import samestep

    return samestep.shard(x, 0, sizes)
