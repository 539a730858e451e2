"""Linting one file: read it, ask the rules, drop what its comments silence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from samestep.lint.findings import Finding, Span
from samestep.lint.python.script import Script
from samestep.lint.registry import Language, Rule, all_rules
from samestep.lint.rules.files import UNKNOWN_CODE, UNREADABLE
from samestep.lint.shell.script import ShellScript
from samestep.lint.suppress import Silences
from samestep.lint.text import UnreadableSource


def lint_bytes(path: str, data: bytes, language: Language, rules: Iterable[Rule]) -> list[Finding]:
    """The findings in a file's contents, in the order of their places. Nothing of it is executed."""
    chosen = list(rules)
    try:
        script: Script | ShellScript = Script(path, data) if language == "python" else ShellScript(path, data)
        found = list(_check(script, chosen))
    except UnreadableSource as error:
        return _unreadable(path, chosen, error.line, error.column, error.reason)
    except RecursionError:
        return _unreadable(path, chosen, 1, 1, "its expressions are nested too deeply to be checked")
    lines = script.text.text.count("\n") if isinstance(script, ShellScript) else len(script.lines)
    silences = Silences(path, script.comments(), lines + 1, script.blank_lines())
    known = all_rules()
    if UNKNOWN_CODE in chosen:
        for span, code in silences.named:
            if code.upper() not in known:
                found.append(UNKNOWN_CODE.here(path, span, f"there is no rule {code!r}: the comment silences nothing"))
    return sorted(set(silences.kept(found)), key=lambda each: (each.span, each.code, each.message))


def _check(script: Script | ShellScript, rules: list[Rule]) -> Iterator[Finding]:
    if isinstance(script, Script) and script.problem is not None:
        problem = script.problem
        yield from _unreadable(script.path, rules, problem.line, problem.column, problem.reason)
    for rule in rules:
        if isinstance(script, Script):
            for check in rule.python_checks:
                yield from check(script)
        else:
            for shell_check in rule.shell_checks:
                yield from shell_check(script)


def _unreadable(path: str, rules: list[Rule], line: int, column: int, reason: str) -> list[Finding]:
    if UNREADABLE not in rules:
        return []
    return [UNREADABLE.here(path, Span(line, column, line, column), reason)]
