"""What main reads from its standard input, and what it knows of its terminal, on every rank.

A script branches on `input()` and on `sys.stdout.isatty()`; the answers must be alike. Main reads, and publishes each
piece through the run's store; the others wait for it. Binary reads through `sys.stdin.buffer` too. Not covered:
descriptor 0 read by other means (`os.read(0, …)`, `open(0)`), and terminal sizes that change during the run.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

from .patching import Patches

_TERMINAL = "stdin/terminal"
_END, _PIECE = b"E", b"P"

_installed: Patches | None = None


class Store(Protocol):
    """The part of `torch.distributed.Store` that is used."""

    def set(self, key: str, value: Any, /) -> Any:
        """Publish a value."""

    def get(self, key: str, /) -> bytes:
        """Wait for a value."""


class Channel:
    """The pieces of input, in main's order."""

    def __init__(self, store: Store, reads: bool) -> None:
        self._store = store
        self.reads = reads
        self._count = 0

    def next(self, read: Callable[[], bytes | None]) -> bytes | None:
        """The next piece; None for the end that `input()` reports. `read` is called on main only."""
        key = f"stdin/{self._count}"
        self._count += 1
        if self.reads:
            piece = read()
            self._store.set(key, _END if piece is None else _PIECE + piece)
            return piece
        found = _wait(self._store, key)
        return None if found[:1] == _END else found[1:]


def _wait(store: Store, key: str) -> bytes:
    """`store.get`, however long a person takes to answer."""
    while True:
        try:
            return bytes(store.get(key))
        except RuntimeError as error:
            # Only a timeout is waited out; a lost connection (another subclass) means that main is gone.
            if type(error).__name__ != "DistStoreError" and "timeout" not in str(error).lower():
                raise


def _text(piece: bytes | None) -> str:
    return (piece or b"").decode("utf-8", "surrogateescape")


def _piece(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


class SharedBuffer(io.BufferedIOBase):
    """`sys.stdin.buffer`."""

    def __init__(self, channel: Channel, real: Any) -> None:
        self._channel = channel
        self._real = real

    def readable(self) -> bool:
        """True."""
        return True

    def fileno(self) -> int:
        """That of the real one."""
        return int(self._real.fileno())

    def read(self, size: int | None = -1, /) -> bytes:
        """Like `io.BufferedReader.read`."""
        return self._channel.next(lambda: self._real.read(size)) or b""

    def read1(self, size: int = -1, /) -> bytes:
        """Like `io.BufferedReader.read1`."""
        return self._channel.next(lambda: self._real.read1(size)) or b""

    def readline(self, size: int | None = -1, /) -> bytes:
        """Like `io.BufferedReader.readline`."""
        return self._channel.next(lambda: self._real.readline(size)) or b""

    def readinto(self, buffer: Any, /) -> int:
        """Like `io.BufferedReader.readinto`."""
        view = memoryview(buffer).cast("B")
        found = self.read(len(view))
        view[: len(found)] = found
        return len(found)


class SharedInput(io.TextIOBase):
    """`sys.stdin`. Iteration and `readlines` go through `readline`, as in every Python stream."""

    def __init__(self, channel: Channel, real: Any, is_terminal: bool) -> None:
        self._channel = channel
        self._real = real
        self._is_terminal = is_terminal
        self.buffer = SharedBuffer(channel, getattr(real, "buffer", None))
        self.name = "<stdin>"
        self.mode = "r"

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the real one."""
        return getattr(self._real, "encoding", None) or "utf-8"

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """That of the real one."""
        return getattr(self._real, "errors", None)

    def readable(self) -> bool:
        """True."""
        return True

    def isatty(self) -> bool:
        """Whether main's is a terminal."""
        return self._is_terminal

    def fileno(self) -> int:
        """That of the real one."""
        return int(self._real.fileno())

    def read(self, size: int | None = -1, /) -> str:
        """Like `io.TextIOWrapper.read`."""
        return _text(self._channel.next(lambda: _piece(self._real.read(size))))

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        """Like `io.TextIOWrapper.readline`."""
        return _text(self._channel.next(lambda: _piece(self._real.readline(size))))


def _shared_input(channel: Channel, real: Any, original: Callable[..., str]) -> Callable[..., str]:
    def read(prompt: Any) -> bytes | None:
        # The original on the real stream: line editing, and the prompt, as without us.
        shared = sys.stdin
        sys.stdin = real
        try:
            return _piece(original(prompt))
        except EOFError:
            return None
        finally:
            sys.stdin = shared

    def replacement(prompt: Any = "", /) -> str:
        """Read a string from main's standard input."""
        if not isinstance(sys.stdin, SharedInput):  # the script has put something else there
            return original(prompt)
        if not channel.reads:
            sys.stdout.write(str(prompt))
        piece = channel.next(lambda: read(prompt))
        if piece is None:
            raise EOFError("EOF when reading a line")
        return _text(piece)

    return replacement


def _install(store: Store, reads: bool, is_terminal: bool) -> Patches:
    patches = Patches()
    channel = Channel(store, reads)
    real = sys.stdin if sys.stdin is not None else io.StringIO()
    patches.set(sys, "stdin", SharedInput(channel, real, is_terminal))
    patches.replace(builtins, "input", _shared_input(channel, real, builtins.input))
    return patches


def _sizes() -> dict[str, list[int] | None]:
    found: dict[str, list[int] | None] = {}
    for descriptor in range(3):
        found[str(descriptor)] = None
        with contextlib.suppress(OSError):
            found[str(descriptor)] = list(os.get_terminal_size(descriptor))
    return found


def install_main(store: Store) -> None:
    """Publish this process's terminal, and from now on what it reads."""
    global _installed
    if _installed is not None:
        return
    terminals = [os.isatty(descriptor) for descriptor in range(3)]
    store.set(_TERMINAL, json.dumps({"terminals": terminals, "sizes": _sizes()}))
    _installed = _install(store, True, bool(sys.stdin) and sys.stdin.isatty())


def install_replica(store: Store) -> None:
    """Read what main reads, and answer questions about the terminal as main would."""
    global _installed
    if _installed is not None:
        return
    known = json.loads(_wait(store, _TERMINAL))
    patches = _installed = _install(store, False, known["terminals"][0])
    _answer_terminals(patches, known["terminals"], known["sizes"])
    patches.sweep()


def _answer_terminals(patches: Patches, terminals: list[bool], sizes: dict[str, list[int] | None]) -> None:
    isatty, get_size = os.isatty, os.get_terminal_size

    def shared_isatty(fd: int, /) -> bool:
        """Whether main's descriptor is a terminal."""
        return terminals[fd] if 0 <= fd < 3 else isatty(fd)

    def shared_size(fd: int = 1, /) -> os.terminal_size:
        """The size of main's terminal."""
        if not 0 <= fd < 3:
            return get_size(fd)
        found = sizes[str(fd)]
        if found is None:
            raise OSError(25, os.strerror(25))
        return os.terminal_size((found[0], found[1]))

    patches.replace(os, "isatty", shared_isatty)
    patches.replace(os, "get_terminal_size", shared_size)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        _answer_stream(patches, getattr(sys, name), terminals[descriptor])


def _answer_stream(patches: Patches, stream: Any, is_terminal: bool) -> None:
    try:
        stream.isatty = lambda: is_terminal
    except AttributeError:  # a stream of the launcher that takes no attributes
        return
    patches.on_undo(lambda: stream.__dict__.pop("isatty", None))


def uninstall() -> None:
    """Take everything back (for tests)."""
    global _installed
    if _installed is not None:
        patches, _installed = _installed, None
        patches.undo()
