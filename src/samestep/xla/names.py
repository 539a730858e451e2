"""Names that torch_xla has dropped and frameworks still call, where only the name is missing.

Ignite 0.5's backend `xla-tpu` asks `torch_xla.core.xla_model` for them.
"""

from __future__ import annotations

import importlib
from typing import Any

#: The name in `torch_xla.core.xla_model` → what has its meaning in `torch_xla.runtime`.
RENAMED = {"xrt_world_size": "world_size", "get_ordinal": "global_ordinal"}


def supply() -> list[str]:
    """Put the missing names back; returns those that were missing."""
    model: Any = importlib.import_module("torch_xla.core.xla_model")
    runtime: Any = importlib.import_module("torch_xla.runtime")
    missing = [name for name in RENAMED if not hasattr(model, name) and hasattr(runtime, RENAMED[name])]
    for name in missing:
        setattr(model, name, getattr(runtime, RENAMED[name]))
    return missing
