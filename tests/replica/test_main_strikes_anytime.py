"""Main may run its whole script between any two system calls of another rank, which must not notice."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from replica_harness import Process, Step, alone, fresh_directory, outcome
from test_scripts import SCRIPTS, comparable, text_of, write

from samestep.replica import files, raw

_COUNTED = (
    "access", "chmod", "fstat", "getcwd", "link", "listdir", "lstat", "mkdir", "open_fd", "pread", "read", "readlink",
    "rename", "replace", "rmdir", "scandir", "stat", "symlink", "unlink", "utime", "write",
)  # fmt: skip


def interrupt_after(calls: int, strike: Callable[[], None]) -> Callable[[], int]:
    """Let `strike` happen before the call of that number to the system; returns how many calls there were."""
    count = 0

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(*args: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == calls:
                strike()
            return function(*args, **options)

        return replacement

    for name in _COUNTED:
        setattr(raw, name, counting(getattr(raw, name)))
    return lambda: count


def struck(steps: list[Step], setup: Callable[[], None], calls: int) -> tuple[list[Any], int]:
    """A replica's answers if main does everything before its call number `calls`, and how many calls it makes."""
    with fresh_directory() as directory, fresh_directory() as run_dir:
        before = os.getcwd()
        os.chdir(directory)
        setup()
        os.chdir(before)
        main = Process(directory, lambda: files.install_main(run_dir), [lambda: [outcome(step) for step in steps]])
        made: Callable[[], int] = lambda: 0  # noqa: E731

        def prepare() -> None:
            nonlocal made
            files.install_replica(run_dir, 1)
            made = interrupt_after(calls, lambda: main.step() and None)

        replica = Process(directory, prepare, [lambda: ([outcome(step) for step in steps], made())])
        try:
            result: tuple[list[Any], int] = replica.step()
        finally:
            replica.finish()
            main.finish()
        return result


def counters() -> list[Step]:
    """A run number kept in a file, and a configuration that is rewritten in place."""

    def next_run() -> int:
        number = int(text_of("run")) + 1
        write("run", str(number))
        return number

    def appended() -> str:
        with open("history", "r+") as file:
            found = file.read()
            file.write("more\n")
        return found

    return [next_run, next_run, appended, lambda: text_of("history"), lambda: os.path.getsize("history")]


def some_counters() -> None:
    write("run", "7")
    write("history", "a\n")


STRUCK = {**{name: SCRIPTS[name] for name in ("logs", "directories", "tools")}, "counters": (counters, some_counters)}


def stride(total: int, most: int) -> range:
    """At most that many of the moments, evenly spread, the first ones included."""
    return range(1, total + 1, max(1, total // most))


@pytest.mark.parametrize("name", STRUCK)
def test_main_strikes_at_any_moment(name: str) -> None:
    make, setup = STRUCK[name]
    steps = make()
    expected, _ = alone(steps, setup)
    _, total = struck(steps, setup, 0)
    assert total > 20
    every = os.environ.get("REPLICA_EVERY_MOMENT")
    for calls in range(1, total + 1) if every else stride(total, 25):
        answers, _ = struck(steps, setup, calls)
        assert comparable(answers) == comparable(expected), f"main strikes before call {calls} of {total}"
