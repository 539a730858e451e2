"""Means as exact quotients: the ranks add up numerators, and divide once."""

from __future__ import annotations

import torch

from samestep.globalview.placement import PARTIAL
from samestep.globalview.tensor import GlobalTensor, sharded

_CARDINALS: dict[tuple[int, torch.dtype], torch.Tensor] = {}


def _cardinal(count: int, dtype: torch.dtype) -> torch.Tensor:
    """A count as a tensor: dividing by it costs less than by a Python number, and it is a CPU scalar on any device."""
    found = _CARDINALS.get((count, dtype))
    if found is None:
        if len(_CARDINALS) > 4096:
            _CARDINALS.clear()
        with torch.inference_mode(False):
            found = _CARDINALS[count, dtype] = torch.tensor(count, dtype=dtype)
    return found


def mean_of(total: torch.Tensor, count: int, origin: str | None) -> GlobalTensor:
    """The mean of `count` elements of which this rank's add up to `total`, in single or double precision."""
    result = sharded(total / _cardinal(count, total.dtype), PARTIAL, total.shape)
    result._origin = origin
    if not total.is_inference():
        result._quotient = (total, count, result._local._version)
    return result
