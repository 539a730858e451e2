"""Starting the ranks of one machine: torch is imported once, then one process is forked per device."""

from __future__ import annotations

import gc
import importlib
import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from samestep.devices.affinity import near_cpus
from samestep.devices.environment import set_thread_environment
from samestep.devices.spec import DeviceSelection
from samestep.errors import SamestepError
from samestep.launch import processes
from samestep.launch.again import requested
from samestep.launch.channel import LauncherEnd, RankEnd
from samestep.launch.child import Birth, become_rank
from samestep.launch.context import Closable, Program, RankContext
from samestep.launch.device_choice import asked
from samestep.launch.report import report
from samestep.launch.signals import Signals
from samestep.launch.supervisor import Outcome, Rank, Supervisor

__all__ = ["Outcome", "Program", "RankContext", "launch_local", "prepare", "run_ranks"]


def launch_local(program: Program, selection: DeviceSelection, *, run_dir: Path | None = None) -> int:
    """Run `program` on one rank per selected device; returns the exit code of the run.

    That is main's if main failed by itself, else the code of the rank that failed first; 128+n for a rank that
    signal n killed. The failure is told on stderr. Without `run_dir` a private directory is made and removed.
    """
    return run_ranks(program, selection, run_dir=run_dir).code


def run_ranks(
    program: Program,
    selection: DeviceSelection,
    *,
    run_dir: Path | None = None,
    tell: bool = True,
    count: int | None = None,
    equal: bool = False,
) -> Outcome:
    """Like `launch_local`, but returns all there is to know; `tell=False` leaves telling a failure to the caller.

    `count` processes are started instead of one per device; `equal`: they are those of a distributed program.
    """
    threads = prepare(selection)
    with _directory(run_dir) as directory, Signals() as signals:
        lifeline, held = os.pipe()  # ranks see it close when this process, which alone holds one end, is gone
        before = processes.descendants()  # now: a rank may start processes as soon as it is there
        adopted = processes.adopt_orphans(True)
        try:
            world = count or selection.count
            listener = socket.create_server(("127.0.0.1", 0), backlog=max(128, world))
            with listener:
                ranks = _fork(program, selection, world, equal, directory, threads, signals, (lifeline, held), listener)
                # The ranks of a distributed program may end one by one, so none of them can hold the store.
                store = _serve(listener) if equal else None
            outcome = Supervisor(ranks, signals, before, tell, equal).run()
            del store  # with its threads, before anything is forked again
        finally:
            processes.adopt_orphans(adopted)
            os.close(lifeline)
            os.close(held)
        chosen = asked(directory)
        if chosen is not None:
            return Outcome(0, len(ranks), devices=chosen)
        request = requested(directory)
        if request is not None:
            outcome = Outcome(0, world, again=request)
        elif tell:
            report(outcome, directory)
    return outcome


def prepare(selection: DeviceSelection) -> int | None:
    """Divide the cores among the ranks, then import torch; returns the threads per rank (None: the user's choice).

    In this order, because the libraries below torch read their number of threads when they are loaded, and threads
    that run in the launcher would not exist in the forked ranks.
    """
    threads = set_thread_environment(selection.count, near_cpus(selection))
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise SamestepError(f"PyTorch cannot be imported by {sys.executable}: {error}") from error
    if selection.kind == "cuda" and torch.cuda.is_initialized():
        raise SamestepError("CUDA is already in use in this process, so its ranks cannot be forked from it")
    return threads


@contextmanager
def _directory(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield given
        return
    made = Path(tempfile.mkdtemp(prefix="samestep-"))  # only this user can enter it
    owner = os.getpid()
    try:
        yield made
    finally:
        if os.getpid() == owner:  # never a forked rank
            shutil.rmtree(made, ignore_errors=True)


def _fork(
    program: Program,
    selection: DeviceSelection,
    world: int,
    equal: bool,
    directory: Path,
    threads: int | None,
    signals: Signals,
    lifeline: tuple[int, int],
    listener: socket.socket,
) -> list[Rank]:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # or every rank would write the rest of the buffer
    gc.freeze()  # collections in the ranks leave these objects alone, so their memory stays shared
    launcher, seed = os.getpid(), secrets.randbits(63)
    port = listener.getsockname()[1]
    lines = [socket.socketpair() for _ in range(world)]
    echoes = [socket.socketpair() for _ in range(world)]
    for end in (end for pair in echoes for end in pair):
        end.setblocking(False)
    ranks: list[Rank] = []
    try:
        for number in range(world):
            pid = os.fork()
            if pid:
                ranks.append(Rank(number, pid, LauncherEnd(lines[number][0]), echoes[number][0]))
                continue
            fd = listener.detach() if number == 0 and not equal else None
            context = RankContext(number, world, selection, directory, port, fd, seed, equal)
            mine = (lines[number][1], echoes[number][1])
            ends = [end for pair in lines + echoes for end in pair if end not in mine]
            foreign: tuple[Closable, ...] = (*ends, listener, _Descriptor(lifeline[1]))
            line = RankEnd(lines[number][1], launcher)
            become_rank(
                program,
                context,
                Birth(launcher, line, echoes[number][1], threads, foreign, lifeline[0], signals.restore),
            )
    except OSError as error:
        for rank in ranks:
            rank.kill_now()
        raise SamestepError(f"only {len(ranks)} of {world} processes could be started: {error.strerror}") from error
    finally:
        for pair in lines + echoes:
            pair[1].close()
    return ranks


def _serve(listener: socket.socket) -> Any:
    """A rendezvous store in this process, on the port that the ranks were told."""
    dist: Any = importlib.import_module("torch.distributed")
    host, port = listener.getsockname()[:2]
    wait = timedelta(seconds=120)
    fd = listener.detach()
    return dist.TCPStore(host, port, is_master=True, master_listen_fd=fd, wait_for_workers=False, timeout=wait)


class _Descriptor:
    def __init__(self, number: int) -> None:
        self._number = number

    def close(self) -> None:
        os.close(self._number)
