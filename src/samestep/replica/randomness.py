"""The same random numbers on every rank, also where Python would ask the operating system for them.

A script branches on what it draws (a run's name, a shuffled split), so all ranks must draw alike. `random`,
`numpy.random` and torch's default CPU generator are seeded from the operating system in a fresh process; here they get
a seed that all ranks share. torch's CUDA generators need nothing: their first seed is a constant. What comes straight
from the system (`os.urandom`, `secrets`, `uuid.uuid4`, generators without a seed) comes from a keyed stream instead:
SHAKE-256 of the shared seed, the stream's name and a counter. The shared seed must itself be a fresh secret of the
system (128 bits or more), for `secrets` to remain what its name says.

Streams are separate by the calling package, the module through which it asks, and the thread. So a library that draws
on one rank only (a tracker that is off elsewhere, a thread in the background) shifts nobody else's stream. Left over:
one package that draws in two threads of the same name, or on one rank more often than on another.

Left to the system: names of temporary files, multiprocessing's keys and names, sockets; they must differ between
processes. A forked process (a worker of a DataLoader) gets streams of its own, the same on all ranks for the k-th fork
of the same process; `diverge` makes them differ between ranks.

Not covered: `torch.Generator().seed()`, a method of a C type that cannot be replaced; clocks, process ids, addresses.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import random
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any

from . import raw
from .patching import Patches, after_import

# Modules between the script and the system: not the ones that ask, but the ways of asking.
_WAYS = frozenset({"os", "random", "secrets", "uuid", "numpy", "torch"})
# Packages whose draws must differ between processes.
_OF_THE_SYSTEM = frozenset(
    {"tempfile", "multiprocessing", "concurrent", "asyncio", "socket", "ssl", "subprocess", "samestep"}
)
_SEED_BYTES = 32


class _Streams:
    """Deterministic bytes, by the name of the stream."""

    def __init__(self, shared_seed: int) -> None:
        size = max(_SEED_BYTES, (shared_seed.bit_length() + 8) // 8)
        self._key = hashlib.sha256(shared_seed.to_bytes(size, "little", signed=True)).digest()
        self._counters: dict[str, itertools.count[int]] = {}
        self._forks = 0

    def draw(self, name: str, size: int) -> bytes:
        """The next `size` bytes of a stream."""
        counter = self._counters.setdefault(name, itertools.count())
        text = f"{name}\0{next(counter)}".encode()
        return hashlib.shake_256(self._key + text).digest(size)

    def branch(self, label: str) -> None:
        """Continue with other streams, that depend on `label`."""
        self._key = hashlib.sha256(self._key + label.encode()).digest()
        self._counters = {}

    def before_fork(self) -> None:
        """Count the forks, so that each child gets its own."""
        self._forks += 1

    def in_child(self) -> None:
        """Give the child its own streams."""
        self.branch(f"fork {self._forks}")
        self._forks = 0


_streams: _Streams | None = None
_installed: Patches | None = None
_fork_hooks = False


def _asker() -> tuple[str, str]:
    """The way through which somebody asks, and the package that does."""
    frame = sys._getframe(1)
    way = "os"
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package == "samestep" and str(frame.f_globals["__name__"]) == __name__:
            pass
        elif package in _WAYS:
            way = package
        else:
            return way, package
        if frame.f_back is None:
            break
        frame = frame.f_back
    return way, ""


def _random_bytes(size: int) -> bytes:
    way, package = _asker()
    if _streams is None or package in _OF_THE_SYSTEM or size < 0:
        return raw.urandom(size)
    return _streams.draw(f"{way}/{package}/{threading.current_thread().name}", size)


def _urandom(size: int, /) -> bytes:
    """Return a bytes object containing random bytes, the same on every rank."""
    return _random_bytes(size)


def _fresh_seed() -> int:
    return int.from_bytes(_random_bytes(_SEED_BYTES), "little")


def diverge(label: str) -> None:
    """Let this process draw otherwise than its peers from now on: for work on rows that only this rank has."""
    if _streams is not None:
        _streams.branch(label)


def install(shared_seed: int) -> None:
    """Seed this rank like all others, and let draws from the system be alike. Call before the script starts."""
    global _streams, _installed
    if _installed is not None:
        return
    _streams = _Streams(shared_seed)
    patches = _installed = Patches()
    patches.replace(os, "urandom", _urandom)
    patches.set(random, "_urandom", _urandom)  # SystemRandom, secrets, and through them numpy's SeedSequence
    _patch_random(patches)
    _patch_uuid(patches)
    after_import(patches, {"torch": lambda module: _patch_torch(patches, module)})
    patches.sweep()
    _keep_for_system(patches)
    _hook_forks()
    _seed_generators(shared_seed)


def uninstall() -> None:
    """Take everything back (for tests)."""
    global _streams, _installed
    if _installed is not None:
        patches, _installed, _streams = _installed, None, None
        patches.undo()


def _hook_forks() -> None:
    global _fork_hooks
    if _fork_hooks or not hasattr(os, "register_at_fork"):
        return
    _fork_hooks = True  # they cannot be taken back, so they look whether there is something to do
    os.register_at_fork(
        before=lambda: _streams.before_fork() if _streams else None,
        after_in_child=lambda: _streams.in_child() if _streams else None,
    )


def _keep_for_system(patches: Patches) -> None:
    """Undo the sweep where a module holds `urandom` for itself and needs it to differ."""
    for name in ("tempfile",):
        module = sys.modules.get(name)
        if module is not None and vars(module).get("_urandom") is _urandom:
            patches.set(module, "_urandom", raw.urandom)


def _seed_generators(shared_seed: int) -> None:
    digest = hashlib.sha256(f"start {shared_seed}".encode()).digest()
    random.seed(int.from_bytes(digest, "little"))

    with contextlib.suppress(ImportError):
        import numpy.random

        numpy.random.seed(int.from_bytes(digest[:4], "little"))
    torch = sys.modules.get("torch")
    if torch is not None:
        # Not `torch.manual_seed`: it would give the CUDA generators another seed than a plain process has.
        torch.default_generator.manual_seed(int.from_bytes(digest[4:12], "little") >> 1)


def _patch_random(patches: Patches) -> None:
    original = random.Random.seed

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        """Initialize internal state from a seed; without one, from the stream that all ranks share."""
        if a is None and not _asked_by_system():
            a = _fresh_seed()
        original(self, a, version)

    patches.set(random.Random, "seed", seed)
    instance: random.Random = random._inst
    patches.replace(random, "seed", instance.seed)


def _asked_by_system() -> bool:
    return _asker()[1] in _OF_THE_SYSTEM


def _patch_uuid(patches: Patches) -> None:
    original = uuid.uuid1

    def uuid1(node: int | None = None, clock_seq: int | None = None) -> uuid.UUID:
        """A UUID of version 1 whose time is drawn: clocks differ between ranks."""
        if _asked_by_system():
            return original(node, clock_seq)
        drawn = uuid.UUID(bytes=_random_bytes(16), version=1)
        low, middle, high, clock_high, clock_low, drawn_node = drawn.fields
        if clock_seq is not None:
            clock_high, clock_low = (clock_seq >> 8) & 0x3F | 0x80, clock_seq & 0xFF
        node = uuid.getnode() if node is None else node
        return uuid.UUID(fields=(low, middle, high, clock_high, clock_low, node or drawn_node))

    patches.replace(uuid, "uuid1", uuid1)


def _patch_torch(patches: Patches, torch: Any) -> None:
    def seeding(manual_seed: Callable[[int], Any]) -> Callable[[], int]:
        def seed() -> int:
            """Seed with a number that the system would draw; here all ranks draw the same."""
            value = _fresh_seed() % (1 << 63)
            manual_seed(value)
            return value

        return seed

    everywhere = seeding(torch.manual_seed)
    patches.replace(torch, "seed", everywhere)
    patches.set(torch.random, "seed", everywhere)
    if hasattr(torch, "cuda"):
        patches.replace(torch.cuda, "seed", _without_result(seeding(torch.cuda.manual_seed)))
        patches.replace(torch.cuda, "seed_all", _without_result(seeding(torch.cuda.manual_seed_all)))


def _without_result(seed: Callable[[], int]) -> Callable[[], None]:
    def replacement() -> None:
        seed()

    return replacement
