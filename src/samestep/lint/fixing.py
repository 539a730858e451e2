"""Applying fixes: to Python through libcst, so that every byte that is not meant stays; to shell scripts as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from samestep.errors import SamestepError
from samestep.lint.findings import Edit, Finding, ReplaceText, Span
from samestep.lint.python.python2 import parse
from samestep.lint.registry import Language
from samestep.lint.text import split_lines

if TYPE_CHECKING:
    import libcst

_MEND = "pip install 'samestep[lint]' (or pip install libcst)"


def apply_fixes(data: bytes, language: Language, findings: list[Finding]) -> tuple[bytes, list[Finding]]:
    """The contents with the fixes made, and the findings that were mended.

    Fixes that touch the same place are not made together: the first one is made, the others need another pass.
    Raises `SamestepError` if a Python file is to be mended and libcst is not installed.
    """
    chosen = _disjoint([finding for finding in findings if finding.fix])
    if not chosen:
        return data, []
    if language == "shell":
        return _fix_shell(data, [edit for finding in chosen for edit in finding.fix]), chosen
    return _fix_python(data, chosen)


def _disjoint(findings: list[Finding]) -> list[Finding]:
    taken: list[Span] = []
    chosen = []
    for finding in findings:
        spans = [edit.span for edit in finding.fix]
        if not any(_overlap(one, other) for one in spans for other in taken):
            taken += spans
            chosen.append(finding)
    return chosen


def _overlap(one: Span, other: Span) -> bool:
    start, end = (one.line, one.column), (one.end_line, one.end_column)
    return start <= (other.end_line, other.end_column) and (other.line, other.column) <= end


def _fix_shell(data: bytes, edits: list[Edit]) -> bytes:
    encoding = "utf-8"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        encoding = "latin-1"
        text = data.decode(encoding)
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    text = text[len(mark) :]
    lines = split_lines(text)
    starts = [0]
    for line in lines[:-1]:
        end = starts[-1] + len(line)
        starts.append(end + (2 if text.startswith("\r\n", end) else 1))
    changes = [each for each in edits if isinstance(each, ReplaceText)]
    for each in sorted(changes, key=lambda each: each.span, reverse=True):
        start = starts[each.span.line - 1] + each.span.column - 1
        end = starts[each.span.end_line - 1] + each.span.end_column - 1
        text = text[:start] + each.source + text[end:]
    return (mark + text).encode(encoding)


def _fix_python(data: bytes, findings: list[Finding]) -> tuple[bytes, list[Finding]]:
    cst = import_libcst()
    from samestep.lint.rewriting import Rewriter

    try:
        module = cst.parse_module(data)
    except cst.ParserSyntaxError:  # Python 2, or newer than libcst: it is linted, not mended
        return data, []
    rewriter = Rewriter([edit for finding in findings for edit in finding.fix])
    changed: libcst.Module = cst.metadata.MetadataWrapper(module, unsafe_skip_copy=True).visit(rewriter)
    try:
        parse(changed.bytes)
    except (SyntaxError, ValueError):  # a fix that spoils the file is a fault of ours, not the user's: leave the file
        return data, []
    mended = [finding for finding in findings if all(edit in rewriter.made for edit in finding.fix)]
    return changed.bytes, mended


def import_libcst() -> Any:
    """The module libcst; `SamestepError` with the mend if it is not installed."""
    try:
        import libcst
        import libcst.metadata
    except ImportError as error:
        raise SamestepError(f"--fix rewrites Python files with libcst, which is not installed: {_MEND}") from error
    return libcst
