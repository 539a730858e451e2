"""Random streams: the script's is the same on every rank, a region draws from one of the rank's own.

Dropout must differ between the rows of a batch, so ranks must not draw alike inside a region; and the script's
stream must stand afterwards where it stood before on every rank, or the next shuffle would differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from samestep import world

_own: dict[str, torch.Tensor] = {}
_seed_seen: int | None = None


def _initial(rank: int) -> torch.Tensor:
    generator = torch.Generator()
    # Derived from the script's seed, so that a seeded run can be repeated; rank 0's differs from the script's too.
    generator.manual_seed((torch.initial_seed() * 1_000_003 + 7919 * (rank + 1)) % (1 << 63))
    return generator.get_state()


@contextmanager
def own_stream() -> Iterator[None]:
    """Within: torch's default generators draw from the rank's own stream; after: the script's goes on untouched."""
    global _seed_seen
    rank = world.current().rank
    seed = torch.initial_seed()
    if seed != _seed_seen:  # first use, or the script called manual_seed
        _seed_seen = seed
        _own["cpu"] = _initial(rank)
        _own.pop("cuda", None)
    script = torch.get_rng_state()
    torch.set_rng_state(_own["cpu"])
    cuda_script = None
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        cuda_script = torch.cuda.get_rng_state()
        if "cuda" in _own:
            torch.cuda.set_rng_state(_own["cuda"])
        else:
            generator = torch.Generator("cuda").manual_seed((seed + 7919 * (rank + 1)) % (1 << 63))
            torch.cuda.set_rng_state(generator.get_state())
    try:
        yield
    finally:
        _own["cpu"] = torch.get_rng_state()
        torch.set_rng_state(script)
        if cuda_script is not None:
            _own["cuda"] = torch.cuda.get_rng_state()
            torch.cuda.set_rng_state(cuda_script)
