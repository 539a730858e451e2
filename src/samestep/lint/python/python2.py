"""Python 2 in a file: statements that Python 3 refuses are blanked out, so that the rest can be read.

Every line keeps its number and its indentation. What a blanked statement held is not linted.
"""

from __future__ import annotations

import ast
import re
import warnings

_MOST_STATEMENTS = 2000
_PRINT = re.compile(r"^(?P<indent>\s*(?:[^#'\"\n]*?(?::|;)\s*)?)(?P<word>print|exec)\b(?!\s*\()")
_PRINT_ANY = re.compile(r"^(?P<indent>\s*(?:[^#'\"\n]*?(?::|;)\s*)?)(?P<word>print|exec)\b")
_EXCEPT = re.compile(r"^(?P<start>\s*except\s+[^:#]+?)\s*,\s*(?P<name>[A-Za-z_]\w*)\s*:")
_RAISE = re.compile(r"^(?P<indent>\s*(?:[^#'\"\n]*?(?::|;)\s*)?)raise\s+[\w.]+\s*,")


def parse(text: str | bytes) -> ast.Module:
    """`ast.parse`, without the warnings about escapes that Python prints."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def parse_python2(lines: list[str], error: SyntaxError) -> ast.Module | None:
    """The tree of a Python 2 file with its print, exec, raise and except statements blanked or rewritten; None if it
    is no Python 2, or has more that Python 3 refuses."""
    lines = list(lines)
    for _ in range(_MOST_STATEMENTS):
        if not _rewrite(lines, (error.lineno or 0) - 1):
            return None
        try:
            return parse("\n".join(lines))
        except SyntaxError as next_error:
            if (next_error.lineno or 0) < (error.lineno or 0) and next_error.msg == error.msg:
                return None
            error = next_error
        except ValueError:
            return None
    return None


def _rewrite(lines: list[str], index: int) -> bool:
    # The parser may notice a print only where the next line begins to make no sense: look back a little.
    for number in range(index, max(-1, index - 3), -1):
        if not 0 <= number < len(lines):
            continue
        line = lines[number]
        found = _EXCEPT.match(line)
        if found:
            lines[number] = f"{found['start']} as {found['name']}:{line[found.end() :]}"
            return True
        found = _PRINT.match(line) or _RAISE.match(line) or (_PRINT_ANY.match(line) if number == index else None)
        if found:
            _blank(lines, number, len(found["indent"]))
            return True
    return False


def _blank(lines: list[str], number: int, column: int) -> None:
    """Put `pass` in place of the statement that starts there, down to where its brackets and backslashes end."""
    last, depth = number, 0
    while last < len(lines):
        code = _without_strings(lines[last][column if last == number else 0 :])
        depth += sum(code.count(mark) for mark in "([{") - sum(code.count(mark) for mark in ")]}")
        if depth <= 0 and not code.rstrip().endswith("\\"):
            break
        last += 1
    lines[number] = lines[number][:column] + "pass"
    for each in range(number + 1, min(last, len(lines) - 1) + 1):
        lines[each] = ""


def _without_strings(code: str) -> str:
    code = re.sub(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"", "''", code)
    return code.split("#")[0]
