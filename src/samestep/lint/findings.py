"""What a rule says about a place in a file, and how the place can be mended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["error", "warning"]


@dataclass(frozen=True, order=True)
class Span:
    """A stretch of a file: lines from 1, columns from 1 and in characters, the end exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True)
class ReplaceExpression:
    """Put `source` in place of the expression at `span`."""

    span: Span
    source: str


@dataclass(frozen=True)
class ReplaceStatement:
    """Put the simple statement `source` in place of the one at `span`."""

    span: Span
    source: str


@dataclass(frozen=True)
class SetArgument:
    """Give the call at `span` the keyword argument `name=source`; None takes the argument away."""

    span: Span
    name: str
    source: str | None


@dataclass(frozen=True)
class InsertStatement:
    """Put a line `source` before or after the statement at `span`, or first in the body of the compound one there."""

    span: Span
    source: str
    where: Literal["before", "after", "inside"]


@dataclass(frozen=True)
class GuardMain:
    """Move the statement at `span` under `if __name__ == "__main__":`."""

    span: Span


@dataclass(frozen=True)
class ReplaceText:
    """Put `source` in place of the characters at `span` (shell scripts only)."""

    span: Span
    source: str


Edit: TypeAlias = ReplaceExpression | ReplaceStatement | SetArgument | InsertStatement | GuardMain | ReplaceText


@dataclass(frozen=True)
class Finding:
    """One alarm. `fix` is empty where what was meant is not certain."""

    path: str
    span: Span
    code: str
    severity: Severity
    message: str
    fix: tuple[Edit, ...] = field(default=())
