"""Rules: how an operation acts on the pieces of global tensors. A rule is only ever an optimisation."""

from __future__ import annotations

import torch

from samestep.globalview import (
    fallback,  # noqa: F401  (fills in what happens without a rule)
    methods,
)
from samestep.globalview.rules import indexing, loss, matmul, pointwise, reduction, samplewise, shape
from samestep.globalview.tensor import RULES

_FACTS = "dtype device is_cuda is_cpu layout is_sparse is_quantized is_meta is_mps is_xpu itemsize"


def install() -> None:
    """Fill the table of rules; calling it again changes nothing."""
    if RULES:
        return
    methods.install()
    for family in (pointwise, reduction, shape, indexing, matmul, samplewise, loss):
        family.install()
    for name in _FACTS.split():
        RULES[getattr(torch.Tensor, name).__get__] = samplewise.as_the_piece
    for name in ("shape", "ndim", "nbytes"):
        RULES[getattr(torch.Tensor, name).__get__] = samplewise.size_property(name)
    for name in ("T", "mT"):
        RULES[getattr(torch.Tensor, name).__get__] = shape.permute
