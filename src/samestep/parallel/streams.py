"""Random streams: the script's is the same on every rank; inside a region each rank draws from another.

Dropout must differ between the rows of a batch, so ranks must not draw alike inside a region; and the script's
stream must stand at the same place on every rank afterwards, or the next shuffle would differ.

A region's stream is made from one number drawn from the script's, and the rank. So whatever repeats the script's
stream repeats the region's: `manual_seed`, `set_rng_state`, `fork_rng`, a checkpointed block that is computed again
in backward, a run that is resumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from samestep import world
from samestep.ledger import LEDGER

_LARGEST_SEED = 1 << 63


@contextmanager
def own_stream(draws: bool) -> Iterator[None]:
    """Within: torch's default generators draw from the rank's own stream; after: the script's goes on.

    `draws` says whether the module drew while it was checked, alike on every rank. If not, no number is taken from
    the script's stream; should the module draw all the same, its stream depends on how many regions ran before.
    """
    number = int(torch.empty((), dtype=torch.int64).random_()) if draws else LEDGER.region_calls
    script = torch.get_rng_state()
    on_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    cuda_script = torch.cuda.get_rng_state() if on_cuda else None
    seed = (number * 1_000_003 + 7919 * (world.current().rank + 1)) % _LARGEST_SEED
    torch.default_generator.manual_seed(seed)
    if cuda_script is not None:
        torch.cuda.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(script)
        if cuda_script is not None:
            torch.cuda.set_rng_state(cuda_script)
