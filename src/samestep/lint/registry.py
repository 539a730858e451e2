"""A rule: what it is called, what its page says, and the functions that look for it."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from samestep.errors import SamestepError
from samestep.lint.findings import Edit, Finding, Severity, Span

if TYPE_CHECKING:
    from samestep.lint.python.script import Script
    from samestep.lint.shell.script import ShellScript

Language: TypeAlias = Literal["python", "shell"]

#: The families, by the digit after SST.
GROUPS = {
    "0": "files",
    "1": "devices",
    "2": "data",
    "3": "loss and metrics",
    "4": "saving",
    "5": "distributed",
    "6": "shell",
}
#: The words for a family on the command line, where the title has blanks.
GROUP_WORDS = {"loss": "3", "metrics": "3", **{title: digit for digit, title in GROUPS.items() if " " not in title}}


@dataclass(frozen=True, eq=False)
class Rule:
    """One kind of mistake.

    `wrong` and `right` are whole programs in `language`: the page shows them, and the tests lint them. `fixed` is what
    `--fix` makes of `wrong`, None where the mend is not certain. `fixes_some`: it mends other forms of the mistake.
    """

    code: str
    name: str
    severity: Severity
    summary: str
    why: str
    wrong: str
    right: str
    mend: str
    fixed: str | None = None
    fixes_some: bool = False
    language: Language = "python"
    default: bool = True
    python_checks: list[Callable[[Script], Iterable[Finding]]] = field(default_factory=list)
    shell_checks: list[Callable[[ShellScript], Iterable[Finding]]] = field(default_factory=list)

    @property
    def fixable(self) -> bool:
        """Whether `--fix` mends it, or some forms of it."""
        return self.fixed is not None or self.fixes_some

    @property
    def group(self) -> str:
        return GROUPS[self.code[3]]

    def python(self, check: Callable[[Script], Iterable[Finding]]) -> Callable[[Script], Iterable[Finding]]:
        """Look for this mistake in Python files with `check` (a decorator)."""
        self.python_checks.append(check)
        return check

    def shell(self, check: Callable[[ShellScript], Iterable[Finding]]) -> Callable[[ShellScript], Iterable[Finding]]:
        """Look for this mistake in shell scripts with `check` (a decorator)."""
        self.shell_checks.append(check)
        return check

    def at(self, script: Script, node: ast.AST, message: str, *fix: Edit) -> Finding:
        """A finding at a node of a Python file. Nothing is mended inside f-strings, whose quotes get in the way."""
        if script.f_string_around(node) is not None:
            fix = ()
        return Finding(script.path, script.span(node), self.code, self.severity, message, fix)

    def here(self, path: str, span: Span, message: str, *fix: Edit) -> Finding:
        """A finding at a stretch of a file."""
        return Finding(path, span, self.code, self.severity, message, fix)


def source(text: str) -> str:
    """A program written indented in a rule's source."""
    return textwrap.dedent(text).strip("\n") + "\n"


def prose(text: str) -> str:
    """A paragraph written indented and wrapped in a rule's source."""
    return "\n\n".join(" ".join(part.split()) for part in textwrap.dedent(text).strip().split("\n\n"))


def all_rules() -> dict[str, Rule]:
    """Every rule by its code, in the order of the codes."""
    from samestep.lint.rules import RULES

    return {rule.code: rule for rule in sorted(RULES, key=lambda rule: rule.code)}


def choose(select: Iterable[str], ignore: Iterable[str]) -> list[Rule]:
    """The rules that `--select` and `--ignore` leave.

    Each item is a code (`SST101`), the beginning of codes (`SST1`), a family (`devices`) or `ALL`. Without `select` the
    rules that are on by default are taken; a rule that is off by default is taken when its full code, or ALL, is given.
    """
    rules = all_rules()
    wanted = list(select)
    chosen = {code for code, rule in rules.items() if rule.default} if not wanted else set()
    for item in wanted:
        matching = _matching(item, rules)
        chosen |= {code for code in matching if rules[code].default or item.upper() in ("ALL", code)}
    for item in ignore:
        chosen -= _matching(item, rules)
    return [rule for code, rule in rules.items() if code in chosen]


def find_rule(code: str) -> Rule:
    """The rule with this code or name, in any case; `SamestepError` if there is none."""
    rules = all_rules()
    for rule in rules.values():
        if code.upper() == rule.code or code.lower() == rule.name:
            return rule
    raise SamestepError(f"there is no rule {code!r}; `samestep lint --rules` lists them: {_span_of(rules)}")


def _matching(item: str, rules: dict[str, Rule]) -> set[str]:
    word = item.strip()
    if word.upper() == "ALL":
        return set(rules)
    prefix = f"SST{GROUP_WORDS[word.lower()]}" if word.lower() in GROUP_WORDS else word.upper()
    matching = {code for code in rules if prefix.startswith("SST") and code.startswith(prefix)}
    if not matching:
        families = ", ".join(sorted(GROUP_WORDS))
        known = f"a code ({_span_of(rules)}), its beginning (SST1), a family ({families}) or ALL"
        raise SamestepError(f"no rule matches {item!r}; give {known}")
    return matching


def _span_of(rules: dict[str, Rule]) -> str:
    codes = list(rules)
    return f"{codes[0]} to {codes[-1]}"
