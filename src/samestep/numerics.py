"""What a user may choose about the numbers of a run."""

from __future__ import annotations

from dataclasses import dataclass

from samestep.errors import SamestepError

BATCH_NORMS = ("global", "local")


@dataclass(frozen=True)
class Numerics:
    """How modules that are split over the ranks compute.

    Attributes:
        batchnorm: `"global"`: batch norm in training normalises by the statistics of the whole batch, as one device
            does. `"local"`: by those of the rank's own rows, which is faster and another model; the running statistics
            are still those of the whole batch.
        exact_random: whether random numbers inside modules (dropout, noise) are those that one device would draw.

    Raises:
        SamestepError: `batchnorm` is neither of the two.
    """

    batchnorm: str = "global"
    exact_random: bool = False

    def __post_init__(self) -> None:
        if self.batchnorm not in BATCH_NORMS:
            raise SamestepError(
                f"batchnorm is {self.batchnorm!r}; it may be 'global' (statistics of the whole batch, as one device) "
                "or 'local' (of each device's own rows, faster)"
            )


_chosen = Numerics()


def chosen() -> Numerics:
    """What was chosen for this run."""
    return _chosen


def choose(numerics: Numerics) -> None:
    """Choose for this run; before the first module is called."""
    global _chosen
    _chosen = numerics
