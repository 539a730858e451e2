"""Watching the ranks from the launcher until the last one has ended, and ending them together when one fails."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from dataclasses import dataclass
from typing import Any

from samestep.launch import processes
from samestep.launch.again import Request
from samestep.launch.channel import GO, PRINT, SILENT, Failure, LauncherEnd
from samestep.launch.device_choice import DeviceChoice
from samestep.launch.signals import ENDING, Arrival, Signals

# Seconds. A failing rank stays reachable for LINGER, so that the others come to the same failure by themselves if it
# is theirs as well. GRACE after the first failure those who still run are terminated, and killed KILL_AFTER that.
LINGER = 0.25
LEAVE = 3.0  # how long an equal rank that is done keeps its connections, so that all end together if they can
GRACE = 0.75
MAIN_LAG = 5.0  # main, whose output the user sees, comes to the same failure, or to a collective, if it is given time
KILL_AFTER = 1.0
CAUSE_WAIT = 1.0  # how long main, having lost a peer, waits for that peer's own failure to be known
MAIN_EXIT = 10.0  # for main's exit functions (a tracker that uploads) after it has failed
MAIN_GRACE = 30.0  # for main to save its work after Ctrl-C or SIGTERM
OTHERS_GRACE = 5.0  # for the others after main has ended then
REPEATED = 0.3  # a second Ctrl-C within this time is the first one, sent twice
ECHO = 0.05  # so long a rank has to say that it got a signal, too: some senders send it to the whole process group

_CALM_WAIT, _BUSY_WAIT = 0.2, 0.03


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    `failure` is what is left to tell (None: nothing, or main has told it itself), `cause` the failure that decided.
    `signal` is set if the run ended by a signal that was sent to it, as a lone Python process would have. `again`: the
    script is to be started again in another form. `devices`: the script has chosen others, on which to start again.
    """

    code: int
    world_size: int
    failure: Failure | None = None
    cause: Failure | None = None
    signal: int | None = None
    devices: DeviceChoice | None = None
    again: Request | None = None


class Rank:
    """One forked rank as the launcher knows it."""

    def __init__(self, number: int, pid: int, line: LauncherEnd, echo: socket.socket) -> None:
        self.number = number
        self.pid = pid
        self.line = line
        self._echo = echo
        self._heard: dict[int, float] = {}
        self.alive = True
        self.done = False
        self.failure: Failure | None = None
        self.ended_at: float | None = None
        self.answered = False
        self.released = False
        self.terminated_at: float | None = None

    def listen(self) -> None:
        """Take in what the rank has sent."""
        self._hear()
        failures, done = self.line.receive()
        if failures and self.failure is None:
            self.failure = failures[0]
        if (failures or done) and self.ended_at is None:
            self.ended_at = time.monotonic()
        self.done = self.done or done

    def _hear(self) -> None:
        """Take in which signals the rank has got: Python's own handler writes their numbers (`set_wakeup_fd`)."""
        with contextlib.suppress(OSError):
            for number in self._echo.recv(4096):
                self._heard[number] = time.monotonic()

    def has_heard(self, number: int) -> bool:
        """Whether the rank has got this signal just now."""
        self._hear()
        return time.monotonic() - self._heard.get(number, -REPEATED) < REPEATED

    def reap(self) -> None:
        """Notice the end of the process; an end that it did not announce may be a failure."""
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # somebody else in this program has waited for it
            pid, status = self.pid, 0
        if not pid:
            return
        self.alive = False
        self.listen()  # what it sent last
        self.ended_at = self.ended_at or time.monotonic()
        code = os.waitstatus_to_exitcode(status)
        if code == 0 or self.failure is not None or self.done or self.terminated_at is not None:
            self.done = True
        elif code < 0:
            self.failure = Failure(self.number, time.monotonic(), "signal", 128 - code, signal=-code)
        else:
            self.failure = Failure(self.number, time.monotonic(), "exit", code)

    def send(self, number: int) -> None:
        """Send the rank a signal."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def end_by(self, deadline: float, now: float) -> None:
        """Terminate the rank at `deadline`, and kill it some time later."""
        if now < deadline:
            return
        if self.terminated_at is None:
            self.terminated_at = now
            self.send(signal.SIGTERM)
        elif now >= self.terminated_at + KILL_AFTER:
            self.send(signal.SIGKILL)

    def kill_now(self) -> None:
        """Kill the rank and wait for its end."""
        if self.alive:
            self.send(signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            self.alive = False
        self.line.close()
        self._echo.close()


class Supervisor:
    """Runs the launcher's side of a run; `before` are the processes that were there before the ranks.

    `equal`: the ranks are those of a distributed program; the first to fail is told, be it main or not.
    """

    def __init__(self, ranks: list[Rank], signals: Signals, before: set[Any], tell: bool, equal: bool = False) -> None:
        self._equal = equal
        self._ranks = ranks
        self._main = ranks[0]
        self._signals = signals
        self._before = before
        self._tell = tell
        self._asked: Arrival | None = None  # the first signal that asked for the end
        self._asked_at = 0.0
        self._cut_short = False
        self._hidden: set[Any] = set()

    def run(self) -> Outcome:
        """Watch until no rank is left; then nothing that they started is left, either."""
        try:
            while any(rank.alive for rank in self._ranks):
                self._turn()
        finally:
            for rank in self._ranks:
                rank.kill_now()
            processes.kill(self._leftovers())
        return self._outcome()

    def _turn(self) -> None:
        busy = self._asked is not None or self._first_failure() is not None
        for arrival in self._signals.wait(_BUSY_WAIT if busy else _CALM_WAIT):
            self._on_signal(arrival)
        for rank in self._ranks:
            if rank.alive:
                rank.listen()
                rank.reap()
        self._answer_main()
        self._release()
        self._enforce(time.monotonic())

    def _on_signal(self, arrival: Arrival) -> None:
        now = time.monotonic()
        if arrival.number in ENDING:
            if self._asked is None:
                self._asked, self._asked_at = arrival, now
            elif arrival.number == signal.SIGINT and now - self._asked_at > REPEATED:
                self._cut_short = True
                for rank in self._ranks:
                    rank.terminated_at = now
                    rank.send(signal.SIGKILL)
                return
        if not arrival.everywhere:
            self._forward(arrival.number, now + ECHO)

    def _forward(self, number: int, deadline: float) -> None:
        """Send a signal on to the ranks.

        An interrupt not to those that have got it themselves: a second one would break off their saving.
        """
        targets = [rank for rank in self._ranks if rank.alive and not rank.done]
        while number == signal.SIGINT and time.monotonic() < deadline and targets:
            time.sleep(ECHO / 10)
            targets = [rank for rank in targets if not rank.has_heard(number)]
        for rank in targets:
            rank.send(number)

    def _answer_main(self) -> None:
        """Tell a failed main whether its failure is the one to show."""
        failure = self._main.failure
        if failure is None or self._main.answered or not self._main.alive:
            return
        if failure.peer_lost:
            others = [rank for rank in self._ranks[1:] if rank.failure is not None and not rank.failure.peer_lost]
            unknown = any(rank.alive and not rank.done for rank in self._ranks[1:])
            if not others and unknown and time.monotonic() < failure.time + CAUSE_WAIT:
                return
            shown = not others
        else:
            shown = True
        shown = shown and (not self._equal or self._asked is not None)
        self._main.answered = True
        self._main.line.answer(PRINT if shown and self._tell else SILENT)

    def _release(self) -> None:
        """Let the ranks that are done end: all together if all went well, so that none closes a line still in use."""
        waiting = [rank for rank in self._ranks if rank.alive and rank.done and not rank.released]
        all_done = all(rank.done or not rank.alive for rank in self._ranks)
        first, now = self._first_failure(), time.monotonic()
        if not (all_done or (first is not None and now >= first + LINGER)):
            # An equal rank may end long before the others; but one that they wait for must be missed by them.
            waiting = [rank for rank in waiting if self._equal and now >= (rank.ended_at or now) + LEAVE]
        for rank in waiting:
            if rank is not self._main:
                self._hidden |= processes.descendants(rank.pid)
            rank.released = True
            rank.line.answer(GO)

    def _enforce(self, now: float) -> None:
        """Terminate the ranks whose time is over."""
        first = self._first_failure()
        for rank in self._ranks:
            if not rank.alive:
                continue
            if self._asked is not None:
                rank.end_by(self._asked_deadline(rank), now)
            elif first is not None:
                if rank is not self._main:
                    deadline = first + GRACE
                else:
                    deadline = first + MAIN_LAG if rank.ended_at is None else rank.ended_at + MAIN_EXIT
                rank.end_by(deadline, now)

    def _asked_deadline(self, rank: Rank) -> float:
        if rank is self._main:
            return self._asked_at + MAIN_GRACE
        main_gone = not self._main.alive or self._main.done
        since = max(self._asked_at, self._main.ended_at or 0.0) if main_gone else self._asked_at + MAIN_GRACE
        return since + OTHERS_GRACE

    def _first_failure(self) -> float | None:
        times = [rank.failure.time for rank in self._ranks if rank.failure is not None]
        return min(times) if times else None

    def _leftovers(self) -> set[Any]:
        """What must not outlive the run.

        After a run that went well that is only what the hidden ranks have started: what main has left running, it has
        left running on purpose.
        """
        if self._asked is None and self._first_failure() is None and all(rank.done for rank in self._ranks):
            return {process for process in self._hidden if process.is_running()}
        return processes.descendants() - self._before

    def _outcome(self) -> Outcome:
        world = len(self._ranks)
        if self._asked is not None:
            return self._asked_outcome(int(self._asked.number), world)
        cause = self._cause()
        if cause is None:
            return Outcome(0, world)
        told = cause.rank == 0 and cause.kind != "signal" and not self._equal
        ended_by = cause.signal if told else None
        return Outcome(cause.code, world, None if told else cause, cause, ended_by)

    def _asked_outcome(self, number: int, world: int) -> Outcome:
        """After a signal that asks for the end, main's end counts; that others were interrupted is no news."""
        failure = self._main.failure
        if self._cut_short or (failure is None and self._main.terminated_at is not None):
            return Outcome(128 + number, world, signal=number)
        if failure is None:
            return Outcome(0, world)
        if failure.peer_lost:
            return Outcome(128 + number, world, cause=failure, signal=number)
        told = failure.kind != "signal" or failure.signal == number
        return Outcome(failure.code, world, None if told else failure, failure, failure.signal if told else None)

    def _cause(self) -> Failure | None:
        """The failure that decided: main's own, else the first one of another rank that no other rank has caused."""
        main = self._main.failure
        if main is not None and not main.peer_lost and not self._equal:
            return main
        failures = [rank.failure for rank in self._ranks if rank.failure is not None]
        failures.sort(key=lambda failure: (failure.peer_lost, failure.rank != 0 if failure.peer_lost else failure.time))
        return failures[0] if failures else None
