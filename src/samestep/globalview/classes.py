"""A global tensor is a plain one to the script, also where the script makes a tensor of another's class.

`x.as_subclass(type(y))` (fastai keeps the classes of its tensors so) would make a `GlobalTensor` that holds nothing.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from samestep.globalview.tensor import GlobalTensor

_original = torch.Tensor.as_subclass


@functools.wraps(_original)
def as_subclass(tensor: torch.Tensor, cls: Any) -> Any:
    """As torch's; a tensor made of the class `GlobalTensor` stays what it is."""
    if type(tensor) is GlobalTensor:
        return tensor if cls in (torch.Tensor, GlobalTensor) else _original(tensor.whole("as_subclass"), cls)
    return _original(tensor, torch.Tensor if cls is GlobalTensor else cls)


def install() -> None:
    """Replace torch's function by this one."""
    torch.Tensor.as_subclass = as_subclass  # type: ignore[method-assign, assignment]
