"""Says when nothing was split: the numbers are right then, and nothing is faster, which the user should not find out
by waiting."""

from __future__ import annotations

from samestep import world
from samestep.ledger import LEDGER
from samestep.notice import notice

#: Backward passes after which it is said; the first few may be a warm-up of the script's.
SOON = 10


class _Seen:
    """What this rank has seen."""

    backwards = 0
    said = False


def backward_begins() -> None:
    """A backward pass begins."""
    _Seen.backwards += 1
    if _Seen.backwards == SOON:
        say_if_nothing_was_split()


def say_if_nothing_was_split() -> None:
    """Say so, once, if modules were called and none with rows of its own."""
    if world.current().size < 2 or not LEDGER.whole_calls or LEDGER.region_calls or _Seen.said:
        return
    _Seen.said = True
    notice(
        "nothing was split: no module was called with a batch from a DataLoader, so every device computed all of "
        "it. Wrap the batch: `x = samestep.shard(x)`, or the model: `model = torch.nn.DataParallel(model)`."
    )
