"""Runs the same little script as a lone process and as several ranks, step by step in any order."""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from samestep.replica import files

Step = Callable[[], Any]
Tree = dict[str, tuple[str, Any]]


def tree(root: Path) -> Tree:
    """Everything below a directory, byte for byte."""
    found: Tree = {}
    for base, directories, names in os.walk(root):
        for name in directories + names:
            path = os.path.join(base, name)
            key = os.path.relpath(path, root)
            if os.path.islink(path):
                found[key] = ("link", os.readlink(path))
            elif os.path.isdir(path):
                found[key] = ("directory", None)
            else:
                with open(path, "rb") as file:
                    found[key] = ("file", file.read())
    return found


def outcome(step: Step) -> Any:
    """What the step returns, or the kind of error it raises."""
    try:
        return step()
    except OSError as error:
        return (type(error).__name__, error.errno)
    except Exception as error:
        return (type(error).__name__, traceback.format_exc())


class Process:
    """A forked process that does one step of its script each time it is told to."""

    def __init__(self, directory: Path, prepare: Callable[[], None], steps: Sequence[Step]) -> None:
        self.connection, theirs = Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                self.connection.close()
                self._serve(theirs, directory, prepare, steps)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        theirs.close()

    @staticmethod
    def _serve(connection: Connection, directory: Path, prepare: Callable[[], None], steps: Sequence[Step]) -> None:
        os.chdir(directory)
        prepare()
        for step in steps:
            connection.recv()
            connection.send(outcome(step))

    def step(self) -> Any:
        """Do the next step."""
        self.start()
        return self.result()

    def start(self) -> None:
        """Let it do the next step."""
        self.connection.send(None)

    def result(self) -> Any:
        """Wait for what the step returns."""
        return self.connection.recv()

    def finish(self) -> None:
        """Wait for the end."""
        self.connection.close()
        os.waitpid(self.pid, 0)


@contextmanager
def fresh_directory() -> Iterator[Path]:
    """An empty directory, gone afterwards."""
    path = Path(os.path.realpath(tempfile.mkdtemp(prefix="samestep-test-")))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def play(
    steps: Sequence[Step], setup: Callable[[], None], order: Sequence[int], ranks: int, at_once: bool = False
) -> tuple[list[list[Any]], Tree]:
    """Each rank's answers and the files at the end; `order` names the rank that does its next step.

    One rank: a plain process without anything installed.
    """
    with fresh_directory() as directory, fresh_directory() as run_dir:
        before = os.getcwd()
        os.chdir(directory)
        setup()
        os.chdir(before)
        processes = []
        for rank in range(ranks):

            def prepare(rank: int = rank) -> None:
                if ranks > 1 and rank == 0:
                    files.install_main(run_dir)
                elif ranks > 1:
                    files.install_replica(run_dir, rank)

            processes.append(Process(directory, prepare, steps))
        answers: list[list[Any]] = [[] for _ in range(ranks)]
        try:
            if at_once:
                for rank in order:
                    processes[rank].start()
            for rank in order:
                answers[rank].append(processes[rank].result() if at_once else processes[rank].step())
        finally:
            for process in processes:
                process.finish()
        return answers, tree(directory)


def race(steps: Sequence[Step], setup: Callable[[], None], ranks: int) -> tuple[list[list[Any]], Tree]:
    """Like `play`, but nobody waits for anybody."""
    return play([lambda: [outcome(step) for step in steps]], setup, range(ranks), ranks, at_once=True)


def alone(steps: Sequence[Step], setup: Callable[[], None]) -> tuple[list[Any], Tree]:
    """The answers and files of a lone process."""
    answers, found = play(steps, setup, [0] * len(steps), 1)
    return answers[0], found


def orders(count: int, ranks: int) -> dict[str, list[int]]:
    """Main ahead, main behind, and turn by turn."""
    return {
        "main first": [rank for rank in range(ranks) for _ in range(count)],
        "main last": [rank for rank in reversed(range(ranks)) for _ in range(count)],
        "in turn": [rank for _ in range(count) for rank in range(ranks)],
    }
