"""Parameters, buffers and whole arguments must be equal on all ranks before the first split call."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import nn

from samestep import world
from samestep.errors import SamestepError
from samestep.globalview.tensor import GlobalTensor
from samestep.nest import tensors
from samestep.notice import notice


def _digest(tensor: torch.Tensor) -> int:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()
    if plain.layout is not torch.strided or plain.numel() == 0:
        return 0
    return zlib.crc32(plain.reshape(-1).view(torch.uint8).numpy().data)


def make_equal(module: nn.Module, name: str) -> None:
    """Compare all parameters and buffers over the ranks; if some differ, take main's and say so once."""
    state = [*module.named_parameters(), *module.named_buffers()]
    state = [(key, t) for key, t in state if not isinstance(t, (nn.UninitializedParameter, nn.UninitializedBuffer))]
    here = world.current()
    mine = torch.tensor([_digest(t) for _, t in state] or [0], dtype=torch.int64)
    everyone = here.all_gather(mine, 0, [mine.numel()] * here.size).view(here.size, -1)
    differ = [i for i, _ in enumerate(state) if not bool((everyone[:, i] == everyone[0, i]).all())]
    for i in differ:
        tensor = state[i][1].detach()
        main = tensor.contiguous().clone()
        here.broadcast_(main)
        with torch.no_grad():
            tensor.copy_(main)
    if differ:
        shown = ", ".join(state[i][0] for i in differ[:3]) + (", …" if len(differ) > 3 else "")
        notice(
            f"{len(differ)} of {len(state)} tensors of {name} ({shown}) differed between the ranks at first use; "
            "main's values are used on all. They come from random numbers that are not drawn from torch's, Python's "
            "or NumPy's seeded streams, from the clock, or from a file that changed while it was read. Seed what makes "
            "them, or load the weights from a file, and the run is repeatable, too."
        )


def require_equal_arguments(nest: Any, name: str) -> None:
    """Raise if a whole tensor among the arguments of the module called `name` is not the same on every rank.

    Equal means to rounding: on GPUs, what every rank computes for itself need not be the same to the last bit.

    Raises:
        SamestepError: with the arguments' numbers, shapes and the way out.
    """
    whole = [t for t in tensors(nest) if type(t) is not GlobalTensor and t.layout is torch.strided and t.numel()]
    here = world.current()
    mine = torch.tensor([[_digest(t), *_size(t)] for t in whole] or [[0.0, 0.0, 0.0]], dtype=torch.float64)
    everyone = here.all_gather(mine, 0, [mine.size(0)] * here.size).view(here.size, -1, 3)
    differ = [i for i, _ in enumerate(whole) if not _alike(everyone[:, i])]
    if differ:
        shown = ", ".join(f"one of shape {tuple(whole[i].shape)}" for i in differ[:3])
        raise SamestepError(
            f"{name} was called with tensors that are not the same on every rank ({shown}). Every rank runs the same "
            "script and must make the same tensors: draw random numbers from torch's, Python's or NumPy's global "
            "streams, or from a generator that is seeded, and take nothing from the clock or the process id. If they "
            "are the rank's own rows, give all of them on every rank and cut them by `samestep.shard(tensor)`."
        )


def _size(tensor: torch.Tensor) -> tuple[float, float]:
    plain = tensor.detach().resolve_conj().resolve_neg()
    wide = torch.view_as_real(plain).double() if plain.is_complex() else plain.double()
    return float(wide.sum()), float(wide.abs().sum())


def _alike(ranks: torch.Tensor) -> bool:
    """Whether the digests, or else the sums, of one tensor agree; `ranks` has a row for each."""
    first = ranks[0]
    if bool((ranks[:, 0] == first[0]).all()):
        return True
    return torch.allclose(ranks[:, 1:], first[1:].expand_as(ranks[:, 1:]), rtol=1e-3, atol=1e-3 * abs(float(first[2])))
