"""The devices of a run, as everything above the launcher sees them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

ChosenBy = Literal["default", "environment", "user", "script"]
Kind = Literal["cpu", "cuda", "xpu", "mps", "xla"]

_NAMES: dict[str, tuple[str, str]] = {
    "cpu": ("1 CPU process", "{} CPU processes"),
    "xpu": ("1 XPU", "{} XPUs"),
    "mps": ("the GPU of this Mac", "{} GPUs of this Mac"),
    "xla": ("1 XLA device", "{} XLA devices"),
}


@dataclass(frozen=True)
class DeviceSelection:
    """The devices of a run, one rank each.

    Attributes:
        kind: `cpu`, `cuda` (also AMD's GPUs, which PyTorch calls so), `xpu`, `mps` or `xla`.
        indices: the numbers the user knows the devices by, one per rank.
        visible: the entries for `variable` (CUDA_VISIBLE_DEVICES) in the order in which one process would see them.
        places: where in `visible` each rank's own device is; empty: rank r's is number r.
        names: what the user calls the devices, where that is no number (`0:1`, a MIG slice).
        identities: what tells each rank's device from all others on this machine (UUIDs), for locks.
        near: the CPUs near each rank's device; None where that is not known.
        variable: the environment variable that makes devices visible.
        order: CUDA_DEVICE_ORDER for the ranks.
        shown: what the script reads in `variable`; None: that it is not set.
        chosen_by: who chose: `default` (nobody), `environment` (SAMESTEP_DEVICES), `user` (`--devices`), or `script`.
        one_each: each rank can see its own device only (MIG slices).
        gloo: collectives go over the CPU, because NCCL refuses these devices (MIG slices, `--oversubscribe`, XPUs).
        notes: lines to tell the user.
    """

    kind: Kind
    indices: tuple[int, ...]
    visible: tuple[str, ...] = ()
    places: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    identities: tuple[str, ...] = ()
    near: tuple[tuple[int, ...] | None, ...] = ()
    variable: str = "CUDA_VISIBLE_DEVICES"
    order: str = "PCI_BUS_ID"
    shown: str | None = None
    chosen_by: ChosenBy = "default"
    one_each: bool = False
    gloo: bool = False
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def count(self) -> int:
        """How many ranks there will be."""
        return len(self.indices)

    @property
    def by_user(self) -> bool:
        """Whether the user has said which devices to use: then the script's own choice does not count."""
        return self.chosen_by in ("user", "environment")

    @property
    def home(self) -> int:
        """The index by which the script calls its device: `cuda:0` unless it has chosen another."""
        return self.places[0] if self.places else 0

    def describe(self) -> str:
        """The selection in words: `2 CPU processes`, `GPUs 1, 3`."""
        if self.kind != "cuda":
            one, several = _NAMES[self.kind]
            return one if self.count == 1 else several.format(self.count)
        what = "MIG slice" if self.one_each else "GPU"
        return f"{what}{'' if self.count == 1 else 's'} " + ", ".join(self.names or map(str, self.indices))

    def seen_by(self, rank: int) -> tuple[str, ...]:
        """The devices that a rank must see, in this order, so that its own has the index by which the script calls it.

        The chosen devices change places in a circle, and the others stay where they are. So whatever index the script
        uses, the ranks' devices of that index are different ones, and main sees what one process would.
        """
        if self.one_each:
            return (self.visible[self._place(rank)],)
        chosen = list(dict.fromkeys(self._place(each) for each in range(self.count)))
        turn = chosen.index(self._place(rank))
        seen = list(self.visible)
        for position, place in enumerate(chosen):
            seen[place] = self.visible[chosen[(position + turn) % len(chosen)]]
        return tuple(seen)

    def _place(self, rank: int) -> int:
        return self.places[rank] if self.places else rank

    def as_json(self) -> dict[str, Any]:
        """Plain values, for another process."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> DeviceSelection:
        """The selection that `as_json` wrote down."""
        tuples = {name: _tupled(value) for name, value in values.items()}
        return cls(**tuples)


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list | tuple) else value
