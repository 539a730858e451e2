"""Comments that silence rules: `# samestep: ignore[SST101]`, `# samestep: ignore-file[SST101]`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from samestep.lint.findings import Finding, Span

_COMMENT = re.compile(r"samestep:\s*(?P<what>ignore-file|ignore)(?:\s*\[(?P<codes>[^\]]*)\])?(?![\w-])", re.IGNORECASE)


@dataclass(frozen=True)
class Comment:
    """A comment in a file: its text with the mark, where it stands, and whether the line holds nothing else."""

    text: str
    line: int
    column: int
    alone: bool


@dataclass(frozen=True)
class _Silence:
    first: int
    last: int
    codes: frozenset[str] | None  # None: every rule


class Silences:
    """What the comments of one file silence."""

    def __init__(self, path: str, comments: Iterable[Comment], n_lines: int, blank: Iterable[int] = ()) -> None:
        """`blank` are the lines without code: a comment alone on its line speaks for the next line of code."""
        self._path = path
        self._silences: list[_Silence] = []
        self.named: list[tuple[Span, str]] = []
        skipped = set(blank)
        for comment in comments:
            for match in _COMMENT.finditer(comment.text):
                codes = self._codes(comment, match)
                if match["what"].lower() == "ignore-file":
                    self._silences.append(_Silence(1, n_lines + 1, codes))
                    continue
                last = comment.line
                if comment.alone:
                    last += 1
                    while last in skipped and last < n_lines:
                        last += 1
                self._silences.append(_Silence(comment.line, last, codes))

    def kept(self, findings: Iterable[Finding]) -> Iterator[Finding]:
        """The findings that no comment silences. A comment on any line of what is found counts."""
        for finding in findings:
            first, last = finding.span.line, max(finding.span.line, finding.span.end_line)
            near = [each.codes for each in self._silences if each.first <= last and first <= each.last]
            if not any(codes is None or finding.code in codes for codes in near):
                yield finding

    def _codes(self, comment: Comment, match: re.Match[str]) -> frozenset[str] | None:
        if match["codes"] is None:
            return None
        codes = set()
        for word in re.finditer(r"[^\s,]+", match["codes"]):
            column = comment.column + match.start("codes") + word.start()
            self.named.append((Span(comment.line, column, comment.line, column + len(word[0])), word[0]))
            codes.add(word[0].upper())
        return frozenset(codes)
