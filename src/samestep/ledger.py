"""What happened during a run, counted where it happens, read by `samestep run --explain`.

Lowest package: anything may record, nothing is decided here. Counting call sites costs a walk up the stack, so
it is done only when a report was asked for (`detailed`); the times are always kept, they cost two clock reads.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import dataclass, field
from types import FrameType

_TORCH_DIR = os.sep + os.path.join("site-packages", "torch") + os.sep
#: Where Samestep's own code is.
OWN_DIR = os.path.dirname(os.path.abspath(__file__)) + os.sep


@dataclass
class Gathered:
    """Tensors that were made whole at one line of the script by one operation."""

    count: int = 0
    bytes: int = 0


@dataclass
class Ledger:
    """Counts and times of one rank.

    Attributes:
        detailed: whether call sites are recorded (`--explain`).
        gathers: (file, line, operation, kind) → how often and how many bytes.
        cuts: the ways in which batches were cut, as tuples of rows per rank → how many batches.
        whole_batches: reason → how many batches every rank computed whole.
        regions: qualified name of a module → what was decided about it.
        region_calls, whole_calls: calls of modules from the script with sharded tensors, and with none.
        data_s, communication_s: seconds this rank waited for data and for other ranks.
    """

    detailed: bool = False
    gathers: dict[tuple[str, int, str, str], Gathered] = field(default_factory=dict)
    cuts: Counter[tuple[int, ...]] = field(default_factory=Counter)
    whole_batches: Counter[str] = field(default_factory=Counter)
    regions: dict[str, str] = field(default_factory=dict)
    region_calls: int = 0
    whole_calls: int = 0
    data_s: float = 0.0
    communication_s: float = 0.0
    reduced_bytes: int = 0

    def gather(self, operation: str, kind: str, nbytes: int) -> None:
        """Count one tensor made whole, at the script's line."""
        if not self.detailed:
            return
        file, line = script_line()
        entry = self.gathers.setdefault((file, line, operation, kind), Gathered())
        entry.count += 1
        entry.bytes += nbytes


def script_line(start: FrameType | None = None) -> tuple[str, int]:
    """The innermost frame from `start` (the caller) on that is neither ours, nor torch's, nor the interpreter's own."""
    frame: FrameType | None = start or sys._getframe(1)
    fallback = ("<unknown>", 0)
    while frame is not None:
        name = frame.f_code.co_filename
        if _TORCH_DIR not in name and not name.startswith((OWN_DIR, "<frozen")):
            return name, frame.f_lineno
        frame = frame.f_back
    return fallback


LEDGER = Ledger()
