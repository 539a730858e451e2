"""Parameters and buffers must be equal on all ranks before the first split call."""

from __future__ import annotations

import zlib

import torch
from torch import nn

from samestep import world
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
            "or NumPy's seeded streams, from the clock, or from a file that changed while it was read."
        )
