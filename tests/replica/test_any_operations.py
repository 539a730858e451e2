"""Any sequence of file operations: a replica answers as an ordinary process, wherever main is in the meantime."""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from replica_harness import Step, alone, play

NAMES = ("a", "b", "d", "d/x", "d/y", "d/e", "d/e/z", "n", "n/q", "l", "l/x")
Operation = tuple[str, str, str]


def some_files() -> None:
    """A small tree: files, directories, and a link to a directory."""
    os.makedirs("d/e")
    for name in ("a", "d/x", "d/e/z"):
        Path(name).write_text(f"old {name}")
    os.symlink("d", "l")


def everything() -> list[Any]:
    """All that can be seen below here."""
    found = []
    for base, directories, names in os.walk("."):
        for name in sorted(directories + names):
            path = os.path.join(base, name)
            found.append((path, os.path.islink(path), Path(path).read_text() if os.path.isfile(path) else None))
        directories.sort()
    return sorted(found)


def write(path: str, mode: str, text: str) -> None:
    with open(path, mode) as file:
        file.write(text)


def overwrite_start(path: str) -> None:
    with open(path, "r+") as file:
        file.write("in")


def read(path: str) -> str:
    with open(path) as file:
        return file.read()


def seen(path: str) -> tuple[bool, ...]:
    return os.path.exists(path), os.path.lexists(path), os.path.isdir(path), os.path.isfile(path), os.path.islink(path)


ACTIONS: dict[str, Any] = {
    "write": lambda one, two: write(one, "w", two),
    "append": lambda one, two: write(one, "a", two),
    "exclusive": lambda one, two: write(one, "x", two),
    "overwrite": lambda one, two: overwrite_start(one),
    "truncate": lambda one, two: os.truncate(one, 2),
    "read": lambda one, two: read(one),
    "seen": lambda one, two: seen(one),
    "list": lambda one, two: sorted(os.listdir(one)),
    "size": lambda one, two: os.path.getsize(one) if os.path.isfile(one) else None,
    "mkdir": lambda one, two: os.mkdir(one),
    "makedirs": lambda one, two: os.makedirs(one, exist_ok=True),
    "rmdir": lambda one, two: os.rmdir(one),
    "remove": lambda one, two: os.remove(one),
    # Not a link: rmtree refuses it either way, but by paths with another error than by open directories.
    "rmtree": lambda one, two: None if os.path.islink(one) else shutil.rmtree(one),
    "rename": lambda one, two: os.rename(one, two),
    "replace": lambda one, two: os.replace(one, two),
    "symlink": lambda one, two: os.symlink(two, one),
    "link": lambda one, two: os.link(one, two),
    "copy": lambda one, two: shutil.copyfile(one, two) and None,
    "everything": lambda one, two: everything(),
}
OPERATIONS = st.tuples(st.sampled_from(sorted(ACTIONS)), st.sampled_from(NAMES), st.sampled_from(NAMES))


def steps_of(operations: list[Operation]) -> list[Step]:
    """The operations as a script's steps; at the end it looks at everything."""
    steps: list[Step] = [functools.partial(ACTIONS[name], one, two) for name, one, two in operations]
    return [*steps, everything]


def without_traceback(answer: Any) -> Any:
    """An unexpected error's name alone (`shutil.SameFileError` names paths)."""
    return answer[0] if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], str) else answer


@settings(
    max_examples=int(os.environ.get("REPLICA_EXAMPLES", "60")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(operations=st.lists(OPERATIONS, min_size=1, max_size=12), who=st.lists(st.integers(0, 1), max_size=26))
def test_a_replica_answers_as_an_ordinary_process(operations: list[Operation], who: list[int]) -> None:
    steps = steps_of(operations)
    expected, files_expected = alone(steps, some_files)
    left = [len(steps), len(steps)]
    order = []
    for rank in [*who, *[0] * len(steps), *[1] * len(steps)]:
        if left[rank]:
            left[rank] -= 1
            order.append(rank)
    answers, files_found = play(steps, some_files, order, 2)
    for found in answers:
        assert [without_traceback(each) for each in found] == [without_traceback(each) for each in expected]
    assert files_found == files_expected
