"""What is known of a GPU: the facts that the driver tells, without the driver itself."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class GpuProcess:
    """A process that uses a GPU; `user` is None if it cannot be told (another container's, for one)."""

    pid: int
    memory: int | None
    user: str | None = None
    command: str | None = None

    def describe(self) -> str:
        """`python (pid 4711, alice)`, as far as it is known."""
        who = [f"pid {self.pid}", *([self.user] if self.user else [])]
        return f"{self.command or 'a process'} ({', '.join(who)})"


@dataclass(frozen=True)
class MigSlice:
    """One MIG slice of a GPU. `accessible` is False if the system lets this user not open it."""

    index: int
    uuid: str
    name: str
    memory_total: int
    memory_used: int
    instances: tuple[int, int] | None = None  # GPU instance and compute instance, as in MIG-GPU-…/1/0
    accessible: bool = True


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver describes it; `index` is its number in `nvidia-smi`.

    Memory is in bytes, utilisation in per cent, temperature in degrees Celsius; None is what the driver does not tell.
    `problem` says why the GPU cannot be used, if so. `cpus` are the CPUs near it. `pci` is its address as sysfs writes
    it: `0000:3b:00.0`.
    """

    index: int
    name: str
    uuid: str
    pci: str
    memory_total: int
    memory_used: int
    utilisation: int | None = None
    temperature: int | None = None
    capability: tuple[int, int] | None = None
    processes: tuple[GpuProcess, ...] | None = None
    mig: bool = False
    slices: tuple[MigSlice, ...] = ()
    cpus: frozenset[int] | None = None
    problem: str | None = None

    @property
    def memory_free(self) -> int:
        """Bytes that nobody uses."""
        return self.memory_total - self.memory_used


def plain_pci(address: str) -> str:
    """A PCI address in the one form used here: `00000000:3B:00.0` and `3b:00.0` are `0000:3b:00.0`."""
    parts = address.lower().split(":")
    domain = int(parts[0], 16) if len(parts) == 3 else 0
    return f"{domain:04x}:{parts[-2]}:{parts[-1]}"


PCI_ADDRESS = re.compile(r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")


def gib(count: int) -> str:
    """A number of bytes in words: `20.0 GiB`."""
    return f"{count / 2**30:.1f} GiB"
