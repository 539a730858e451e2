"""Shell source cut into commands and words, with the place of each. Nothing is expanded and nothing is run."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from samestep.lint.findings import Span
from samestep.lint.suppress import Comment

_KEYWORDS = {"if", "then", "elif", "else", "do", "while", "until", "!", "{", "time", "fi", "done", "}", "esac"}
_CLOSING = {"fi", "done", "}", "esac"}
_HEREDOC = re.compile(r"<<-?\s*(?P<quote>['\"\\]?)(?P<word>[A-Za-z_]\w*)")
_OPERATOR = re.compile(r"&&|\|\||;;|\|&|[;&|()\n]")
_REDIRECTION = re.compile(r"\d*(?:&>>|&>|>&|>>|>\||<<<|<<-|<<|<&|<>|>|<)")


@dataclass(frozen=True)
class Word:
    """A word of a command: `raw` as written, `text` without its quotes; where it stands."""

    raw: str
    text: str
    start: int
    end: int

    @property
    def plain(self) -> bool:
        """Whether nothing in it is quoted, escaped or expanded."""
        return self.raw == self.text and not any(mark in self.raw for mark in "$`*?[")


@dataclass
class Command:
    """The words of one simple command, and what ends it: a newline, `;`, `&`, `&&`, `||` or `|`."""

    words: list[Word] = field(default_factory=list)
    ends_with: str = "\n"


class ShellText:
    """The commands and comments of a shell script."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.commands: list[Command] = []
        self.comments: list[tuple[int, str]] = []
        self._line_starts = [0, *(match.end() for match in re.finditer(r"\r\n|\r|\n", text))]
        self._heredocs: list[str] = []
        self._read()

    def span(self, start: int, end: int) -> Span:
        """The place of the characters from offset `start` to `end`."""
        return Span(*self.place(start), *self.place(end))

    def place(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def comment_places(self) -> Iterator[Comment]:
        for start, text in self.comments:
            line, column = self.place(start)
            before = self.text[self._line_starts[line - 1] : start]
            yield Comment(text, line, column, not before.strip())

    def _read(self) -> None:
        text, position = self.text, 0
        command = Command()
        while position < len(text):
            mark = text[position]
            if mark == "\\" and text[position + 1 : position + 3] == "\r\n":
                position += 3
            elif mark == "\\" and text[position + 1 : position + 2] == "\n":
                position += 2
            elif mark in " \t\r":
                position += 1
            elif mark == "#":
                end = text.find("\n", position)
                end = len(text) if end < 0 else end
                self.comments.append((position, text[position:end].rstrip("\r")))
                position = end
            elif found := _REDIRECTION.match(text, position):
                position = self._redirection(found, position)
            elif found := _OPERATOR.match(text, position):
                command = self._finish(command, found[0])
                position = found.end()
                if found[0] == "\n" and self._heredocs:
                    position = self._skip_heredocs(position)
            else:
                word = self._word(position)
                if word.end == position:  # a lone closing quote or the like
                    position += 1
                    continue
                if not (not command.words and word.raw in _KEYWORDS):
                    command.words.append(word)
                position = word.end
        self._finish(command, "\n")

    def _finish(self, command: Command, operator: str) -> Command:
        if command.words:
            command.ends_with = operator
            self.commands.append(command)
        return Command()

    def _redirection(self, found: re.Match[str], position: int) -> int:
        heredoc = _HEREDOC.match(self.text, position + len(found[0]) - len(found[0].lstrip("0123456789")))
        if found[0].endswith(("<<", "<<-")) and heredoc:
            self._heredocs.append(heredoc["word"])
            return heredoc.end() + (1 if heredoc["quote"] in ("'", '"') else 0)
        position = found.end()
        while self.text[position : position + 1] in (" ", "\t"):
            position += 1
        return max(position, self._word(position).end)

    def _skip_heredocs(self, position: int) -> int:
        for word in self._heredocs:
            end = re.compile(rf"^[ \t]*{word}[ \t]*\r?$", re.MULTILINE).search(self.text, position)
            position = end.end() if end else len(self.text)
        self._heredocs = []
        return position

    def _word(self, start: int) -> Word:
        text, position, value = self.text, start, ""
        while position < len(text):
            mark = text[position]
            if mark in " \t\r\n;&|()<>":
                break
            if mark == "\\":
                if text[position + 1 : position + 2] == "\n":
                    position += 2
                    continue
                value += text[position + 1 : position + 2]
                position += 2
            elif mark in "'\"":
                end = self._quoted(position)
                value += text[position + 1 : end - 1]
                position = end
            elif mark == "$" and text[position + 1 : position + 2] in ("(", "{"):
                end = self._balanced(position + 1)
                value += text[position:end]
                position = end
            elif mark == "`":
                end = text.find("`", position + 1)
                end = len(text) if end < 0 else end + 1
                value += text[position:end]
                position = end
            else:
                value += mark
                position += 1
        position = min(position, len(text))
        return Word(text[start:position], value, start, position)

    def _quoted(self, position: int) -> int:
        quote, text = self.text[position], self.text
        position += 1
        while position < len(text) and text[position] != quote:
            if quote == '"' and text[position] == "\\":
                position += 1
            elif quote == '"' and text[position] == "$" and text[position + 1 : position + 2] == "(":
                position = self._balanced(position + 1) - 1
            position += 1
        return min(len(text), position + 1)

    def _balanced(self, position: int) -> int:
        opening = self.text[position]
        closing, depth, text = {"(": ")", "{": "}"}[opening], 0, self.text
        while position < len(text):
            if text[position] in "'\"" and not (opening == "{" and text[position] == "'"):
                position = self._quoted(position)
                continue
            depth += (text[position] == opening) - (text[position] == closing)
            position += 1
            if depth == 0:
                break
        return position
