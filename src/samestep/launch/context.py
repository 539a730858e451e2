"""What a rank is told by the launcher."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from samestep.devices.spec import DeviceSelection


@dataclass(frozen=True)
class RankContext:
    """One rank's place in the run.

    `run_dir` is a directory that only this user can enter, shared by the ranks and removed at the end.
    The rendezvous store listens on 127.0.0.1:`store_port`; `store_listener` is the file descriptor of its listening
    socket, on the main rank only. `shared_seed` was drawn once for all ranks. `equal`: the ranks are a distributed
    program's, each with a part of its own, so that the user sees what every one of them writes.
    """

    rank: int
    world_size: int
    selection: DeviceSelection
    run_dir: Path
    store_port: int
    store_listener: int | None
    shared_seed: int
    equal: bool = False

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that the user sees."""
        return self.rank == 0

    def log(self, stream: Literal["stdout", "stderr"]) -> Path:
        """The file that takes this rank's output (the main rank writes to the terminal instead)."""
        return self.run_dir / f"rank{self.rank}.{stream}"


Program = Callable[[RankContext], None]


class Closable(Protocol):
    """Something of the launcher that a forked rank must let go of."""

    def close(self) -> object:
        """Let go."""
