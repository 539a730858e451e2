"""The line between the launcher and one rank: a pair of sockets with one JSON object a line.

A rank sends a `Failure`, then that it is done; the launcher answers with one of the single bytes below.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from dataclasses import asdict, dataclass
from typing import Literal

PRINT = b"p"  # report your failure yourself, as Python would
SILENT = b"s"  # another rank's failure is the one to report
GO = b"g"  # nobody needs you any more: end


@dataclass(frozen=True)
class Failure:
    """How a rank failed.

    `kind` is `exception` (uncaught), `exit` (a nonzero exit code) or `signal` (killed by one). `text` is what there is
    to show: the traceback, or the text given to `sys.exit`. `peer_lost`: the failure follows from another rank's death.
    `signal` is set if the process ended, or would have ended under plain Python, by that signal.
    """

    rank: int
    time: float
    kind: Literal["exception", "exit", "signal"]
    code: int
    exception: str = ""
    text: str = ""
    peer_lost: bool = False
    signal: int | None = None


class RankEnd:
    """The rank's end of the line."""

    def __init__(self, connection: socket.socket, launcher: int) -> None:
        self._connection = connection
        self._launcher = launcher

    def send_failure(self, failure: Failure) -> None:
        """Tell the launcher how this rank failed."""
        self._send({"failure": asdict(failure)})

    def send_done(self) -> None:
        """Tell the launcher that this rank has nothing left to do but to end."""
        self._send({"done": True})

    def answer(self) -> bytes:
        """Wait for the launcher's answer; GO if there is no launcher any more."""
        try:
            return self._connection.recv(1) or GO
        except OSError:
            return GO

    def _send(self, message: dict[str, object]) -> None:
        self._poke()  # before as well: a long message fills the socket until the launcher reads
        with contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        self._poke()

    def _poke(self) -> None:
        """Wake the launcher, which waits for signals (a SIGCHLD that no child's end has caused does no harm)."""
        if os.getppid() == self._launcher:
            with contextlib.suppress(OSError):
                os.kill(self._launcher, signal.SIGCHLD)


class LauncherEnd:
    """The launcher's end of the line; never blocks."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._rest = b""

    def receive(self) -> tuple[list[Failure], bool]:
        """The failures that have arrived since the last call, and whether "done" has."""
        with contextlib.suppress(OSError):  # nothing there (yet), or the rank is gone
            while chunk := self._connection.recv(65536):
                self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        messages = [json.loads(line) for line in lines]
        failures = [Failure(**message["failure"]) for message in messages if "failure" in message]
        return failures, any("done" in message for message in messages)

    def answer(self, word: bytes) -> None:
        """Answer the rank, if it still listens."""
        with contextlib.suppress(OSError):
            self._connection.send(word)

    def close(self) -> None:
        """Close this end."""
        self._connection.close()
