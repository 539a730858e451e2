"""One Python file, read and parsed once for all rules."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from samestep.lint.findings import Span
from samestep.lint.python.flow import Flow
from samestep.lint.python.names import Names, dotted_name
from samestep.lint.python.python2 import parse, parse_python2
from samestep.lint.python.values import Value
from samestep.lint.suppress import Comment
from samestep.lint.text import UnreadableSource, decode_python, split_lines

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_DEFERRED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True)
class Problem:
    """Why a file, or part of it, could not be read."""

    line: int
    column: int
    reason: str


class Script:
    """A parsed file and the questions that rules put to it."""

    def __init__(self, path: str, data: bytes) -> None:
        """Raises `UnreadableSource` where nothing of the file can be linted."""
        self.path = path
        self.text = decode_python(data)
        self.lines = split_lines(self.text)
        self.problem: Problem | None = None
        self.tree = self._parse()
        self.names = Names(self.tree)
        self.parents: dict[ast.AST, ast.AST] = {}
        self.nodes: list[ast.AST] = []
        waiting: list[ast.AST] = [self.tree]
        while waiting:  # depth first, in the order of the source
            node = waiting.pop()
            self.nodes.append(node)
            children = list(ast.iter_child_nodes(node))
            for child in children:
                self.parents.setdefault(child, node)
            waiting.extend(reversed(children))

    # ---- the tree

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """The calls of functions with these full names, in source order; every call if none is given."""
        for node, name in self._calls:
            if not names or name in names:
                yield node

    def method_calls(self, *methods: str) -> Iterator[ast.Call]:
        """The calls `anything.method(…)`."""
        for node, _ in self._calls:
            if isinstance(node.func, ast.Attribute) and node.func.attr in methods:
                yield node

    def of_type(self, *types: type[ast.AST]) -> Iterator[ast.AST]:
        """The nodes of these types in source order."""
        return (node for node in self.nodes if isinstance(node, types))

    def name(self, node: ast.AST | None) -> str:
        """The full name of what an expression refers to (of what is called, for a call), else ''."""
        if isinstance(node, ast.Call):
            node = node.func
        return self.names.qualified(node) if node is not None else ""

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """What encloses the node, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def function(self, node: ast.AST) -> ast.AST:
        """The function (or lambda) whose body the node is in, or the module."""
        child = node
        for parent in self.ancestors(node):
            if isinstance(parent, _DEFERRED) and not _in_header(parent, child):
                return parent
            child = parent
        return self.tree

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement that the node is part of, or is."""
        for each in (node, *self.ancestors(node)):
            if isinstance(each, ast.stmt):
                return each
        raise ValueError("not inside a statement")

    def inside(self, node: ast.AST, *types: type[ast.AST]) -> Iterator[ast.AST]:
        """The enclosing nodes of these types within the same function, innermost first."""
        for parent in self.ancestors(node):
            if isinstance(parent, types):
                yield parent
            if isinstance(parent, (*_DEFERRED, ast.ClassDef)):
                return

    def walk(self, node: ast.AST) -> Iterator[ast.AST]:
        """The node and what is in it, without the bodies of functions defined there."""
        waiting = [node]
        while waiting:
            each = waiting.pop()
            yield each
            if each is node or not isinstance(each, (*_DEFERRED, ast.ClassDef)):
                waiting.extend(reversed(list(ast.iter_child_nodes(each))))

    def mentions(self, word: str) -> bool:
        """Whether an identifier or string of the file holds the word, in any case; imports do not count."""
        return any(word in each for each in self._words)

    # ---- what variables hold

    @cached_property
    def flow(self) -> Flow:
        return Flow(self.tree, self.names)

    def value(self, node: ast.AST | None) -> Value:
        """What an expression is known to hold where it stands."""
        return self.flow.value(node)

    # ---- places

    def span(self, node: ast.AST) -> Span:
        """Where a node stands (AST columns count UTF-8 bytes; ours count characters).

        A node inside an f-string stands where the string does: before 3.12 Python does not say where in it.
        """
        node = self.f_string_around(node) or node
        line: int = getattr(node, "lineno", 1)
        end_line: int = getattr(node, "end_lineno", None) or line
        start, end = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", None) or 0
        return Span(line, self._characters(line, start), end_line, self._characters(end_line, end))

    def f_string_around(self, node: ast.AST) -> ast.JoinedStr | None:
        """The outermost f-string that the node is in; None if it is in none."""
        around = [each for each in self.ancestors(node) if isinstance(each, ast.JoinedStr)]
        return around[-1] if around else None

    def source(self, node: ast.AST) -> str:
        """The text of a node."""
        if self.f_string_around(node) is not None:
            return ast.unparse(node)
        span = self.span(node)
        lines = self.lines[span.line - 1 : span.end_line]
        lines[-1] = lines[-1][: span.end_column - 1]
        lines[0] = lines[0][span.column - 1 :]
        return "\n".join(lines)

    def comments(self) -> Iterator[Comment]:
        """The comments of the file; by a plain search for `#` where Python's tokenizer gives up."""
        try:
            for token in tokenize.generate_tokens(io.StringIO("\n".join(self.lines)).readline):
                if token.type == tokenize.COMMENT:
                    line, column = token.start
                    yield Comment(token.string, line, column + 1, not token.line[:column].strip())
        except (tokenize.TokenError, SyntaxError, ValueError):
            for number, text in enumerate(self.lines, 1):
                if "#" in text:
                    column = text.index("#")
                    yield Comment(text[column:], number, column + 1, not text[:column].strip())

    def blank_lines(self) -> list[int]:
        """The lines without code: empty ones and comments."""
        return [number for number, text in enumerate(self.lines, 1) if not text.split("#")[0].strip()]

    @cached_property
    def _calls(self) -> list[tuple[ast.Call, str]]:
        return [(node, self.names.qualified(node.func)) for node in self.nodes if isinstance(node, ast.Call)]

    @cached_property
    def _words(self) -> set[str]:
        words = set()
        for node in self.nodes:
            if isinstance(node, ast.Name):
                words.add(node.id.lower())
            elif isinstance(node, ast.Attribute):
                words.add(node.attr.lower())
            elif isinstance(node, ast.keyword | ast.arg) and node.arg:
                words.add(node.arg.lower())
            elif isinstance(node, FunctionNode | ast.ClassDef):
                words.add(node.name.lower())
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value.lower())
        return words

    def _characters(self, line: int, offset: int) -> int:
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        return len(text.encode()[:offset].decode(errors="replace")) + 1

    def _parse(self) -> ast.Module:
        try:
            return parse("\n".join(self.lines))
        except SyntaxError as error:
            tree = parse_python2(self.lines, error)
            place = error.lineno or 1, max(1, error.offset or 1)
            if tree is None:
                raise UnreadableSource(f"Python cannot parse it: {error.msg}", *place) from None
            self.problem = Problem(*place, "this is Python 2: what Python 3 refuses is not checked, the rest is")
            return tree
        except (RecursionError, MemoryError):
            raise UnreadableSource("its expressions are nested too deeply to parse") from None
        except ValueError as error:
            raise UnreadableSource(f"Python cannot parse it: {error}") from None


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """The argument of a call by keyword, or by position where no `*args` comes before."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if position is None or position >= len(call.args):
        return None
    hidden = any(isinstance(each, ast.Starred) for each in call.args[: position + 1])
    return None if hidden else call.args[position]


def is_open(call: ast.Call) -> bool:
    """Whether the call has arguments that cannot be seen (`*args`, `**kwargs`)."""
    return any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords)


def identifiers(node: ast.AST) -> set[str]:
    """The names and attributes used in an expression, and the strings, in lower case."""
    words = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            words.add(each.id.lower())
        elif isinstance(each, ast.Attribute):
            words.add(each.attr.lower())
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            words.add(each.value.lower())
    return words


def _in_header(function: ast.AST, child: ast.AST) -> bool:
    """Whether `child` is a decorator, default or annotation: run where the function is defined."""
    body = function.body if isinstance(function, FunctionNode | ast.Lambda) else []
    return child is not body and not (isinstance(body, list) and child in body)


__all__ = ["FunctionNode", "Problem", "Script", "argument", "dotted_name", "identifiers", "is_open"]
