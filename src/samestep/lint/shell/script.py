"""One shell script: its commands with the assignments before them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from samestep.lint.findings import Span
from samestep.lint.shell.words import Command, ShellText, Word
from samestep.lint.suppress import Comment
from samestep.lint.text import decode_shell

_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<plus>\+?)=")
#: Commands that run the command behind them in the same environment.
_CARRIERS = {
    "nohup",
    "exec",
    "time",
    "nice",
    "ionice",
    "stdbuf",
    "command",
    "env",
    "srun",
    "numactl",
    "setsid",
    "accelerate",
}


@dataclass(frozen=True)
class Assignment:
    """`NAME=value` before or without a command, or behind export, env, declare …"""

    name: str
    value: str
    word: Word
    exported: bool
    command: Command
    alone: bool  # no command on the same line: it is for what follows

    @property
    def constant(self) -> bool:
        """Whether the value holds nothing that the shell would expand."""
        return not any(mark in self.value for mark in "$`*?{") or "'" in self.word.raw

    @property
    def value_start(self) -> int:
        return self.word.start + len(self.name) + 1


class ShellScript:
    """A shell script and the questions that rules put to it."""

    def __init__(self, path: str, data: bytes) -> None:
        """Raises `UnreadableSource` for what is no text."""
        self.path = path
        self.text = ShellText(decode_shell(data))

    @property
    def commands(self) -> list[Command]:
        return self.text.commands

    @property
    def source(self) -> str:
        return self.text.text

    def comments(self) -> Iterator[Comment]:
        return self.text.comment_places()

    def blank_lines(self) -> list[int]:
        lines = self.source.split("\n")
        return [number for number, line in enumerate(lines, 1) if not line.strip() or line.lstrip().startswith("#")]

    def span(self, start: int, end: int) -> Span:
        return self.text.span(start, end)

    def word_span(self, word: Word) -> Span:
        return self.text.span(word.start, word.end)

    @cached_property
    def assignments(self) -> list[Assignment]:
        """Every assignment, in order."""
        return [each for command in self.commands for each in _assignments(command)]

    def assigned(self, command: Command) -> list[Assignment]:
        """The assignments that stand in a command."""
        return [each for each in self.assignments if each.command is command]

    def uses(self, name: str) -> bool:
        """Whether the script expands `$NAME` anywhere."""
        return re.search(rf"\$\{{?!?#?{name}\b", self.source) is not None


def program(command: Command) -> list[Word]:
    """The words of a command from the program on: without assignments, carriers and their options."""
    words = list(command.words)
    while words:
        word = words[0]
        if _ASSIGNMENT.match(word.raw) or word.text in _CARRIERS or word.raw.startswith("-"):
            words.pop(0)
        else:
            return words
    return []


def _assignments(command: Command) -> Iterator[Assignment]:
    words = command.words
    first = words[0].text
    declares = first in ("export", "declare", "typeset", "readonly", "local", "setenv")
    exported = first == "export" or (
        first in ("declare", "typeset") and any(w.raw.startswith("-x") for w in words[1:2])
    )
    carrying = declares
    for index, word in enumerate(words):
        if index == 0 and declares:
            continue
        found = _ASSIGNMENT.match(word.raw)
        if found and not found["plus"]:
            value = word.text[found.end() :] if word.text.startswith(found[0]) else word.raw[found.end() :]
            alone = declares or all(_ASSIGNMENT.match(each.raw) for each in words)
            yield Assignment(found["name"], value, word, exported or not alone, command, alone)
        elif not carrying and word.text not in _CARRIERS | {"sudo"} and not word.raw.startswith("-"):
            return  # the program; what looks like an assignment behind it is an argument
