"""fastai's `DataLoader` is not torch's; its batches are cut where a `Learner` takes them up.

Every rank loads and transforms the whole batch, as one process does, and `Learner` hands its inputs and targets to the
model, the loss and the metrics: there they are cut, as plain tensors (`Learner` itself drops fastai's classes there).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from samestep import world
from samestep.data.loader import cut_batch


def let_learners_cut(module: ModuleType) -> None:
    """Change `fastai.learner.Learner` so; the action that follows its import."""
    original = module.Learner._split

    def split(learner: Any, batch: Any) -> None:
        original(learner, batch)
        if world.current().size > 1:
            learner.xb, learner.yb = cut_batch((learner.xb, learner.yb), any_class=True)

    module.Learner._split = split
