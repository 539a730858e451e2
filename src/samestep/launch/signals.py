"""The signals that reach the launcher, one after the other and with where they came from."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from types import TracebackType

FORWARDED = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})
ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
_SI_KERNEL = 0x80  # siginfo's code of a signal that a terminal has caused
_POLL = 0.02


@dataclass(frozen=True)
class Arrival:
    """A signal that the launcher got; `everywhere`: a terminal sent it, so every rank has got it as well."""

    number: signal.Signals
    everywhere: bool


class Signals:
    """Holds the launcher's signals back while ranks run, to be taken with `wait`.

    A signal that is ignored (SIGHUP under nohup, SIGINT in a background job of a script) stays ignored.
    """

    def __enter__(self) -> Signals:
        self._on_child = signal.getsignal(signal.SIGCHLD)
        if self._on_child is signal.SIG_IGN and _in_main_thread():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or the system would throw the ranks' exit codes away
        watched = {number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN}
        self._watched = watched | {signal.SIGCHLD}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._watched)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def restore(self) -> None:
        """Put everything back as it was; also what a forked rank calls."""
        if self._on_child is signal.SIG_IGN and _in_main_thread():
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def wait(self, timeout: float) -> list[Arrival]:
        """The signals that arrive within `timeout` seconds; returns with the first. SIGCHLD only ends the wait."""
        arrivals: list[Arrival] = []
        try:
            arrival = self._next(timeout)
            while arrival is not None:
                arrivals.append(arrival)
                arrival = self._next(0.0)
        except KeyboardInterrupt:  # another thread of a program that calls `launch_local` has taken the signal
            arrivals.append(Arrival(signal.SIGINT, everywhere=False))
        return [arrival for arrival in arrivals if arrival.number != signal.SIGCHLD]

    def _next(self, timeout: float) -> Arrival | None:
        if sys.platform != "linux":
            return self._next_polled(timeout)
        info = signal.sigtimedwait(self._watched, timeout)
        if info is None:
            return None
        return Arrival(signal.Signals(info.si_signo), everywhere=info.si_code == _SI_KERNEL)

    def _next_polled(self, timeout: float) -> Arrival | None:
        end = time.monotonic() + timeout
        while not (pending := signal.sigpending() & self._watched):
            if time.monotonic() >= end:
                return None
            time.sleep(_POLL)
        number = signal.Signals(signal.sigwait(pending))
        return Arrival(number, everywhere=number == signal.SIGINT and in_foreground())


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def in_foreground() -> bool:
    """Whether a Ctrl-C on this process's terminal reaches it, and with it the processes it has started."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
