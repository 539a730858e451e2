"""Findings written as text, JSON, workflow commands of GitHub Actions, and SARIF 2.1.0."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import PurePath
from urllib.parse import quote

from samestep.lint.findings import Finding
from samestep.lint.registry import Rule

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_text(findings: list[Finding], rules: list[Rule]) -> str:
    """One line a finding: `path:line:column: CODE severity: message`."""
    return "".join(
        f"{each.path}:{each.span.line}:{each.span.column}: {each.code} {each.severity}: {each.message}"
        f"{' [--fix]' if each.fix else ''}\n"
        for each in findings
    )


def as_json(findings: list[Finding], rules: list[Rule]) -> str:
    """A list of objects; columns from 1, in characters, the end exclusive."""
    names = {rule.code: rule.name for rule in rules}
    items = [
        {
            "path": each.path,
            "line": each.span.line,
            "column": each.span.column,
            "end_line": each.span.end_line,
            "end_column": each.span.end_column,
            "code": each.code,
            "name": names[each.code],
            "severity": each.severity,
            "message": each.message,
            "fixable": bool(each.fix),
        }
        for each in findings
    ]
    return json.dumps(items, indent=2, ensure_ascii=False) + "\n"


def as_github(findings: list[Finding], rules: list[Rule]) -> str:
    """Workflow commands, which GitHub Actions shows at the lines of a pull request."""
    lines = []
    for each in findings:
        place = {"file": each.path, "line": each.span.line, "col": each.span.column, "endLine": each.span.end_line}
        if each.span.end_line == each.span.line:
            place["endColumn"] = each.span.end_column
        place["title"] = f"samestep {each.code}"
        properties = ",".join(f"{name}={_property(str(value))}" for name, value in place.items())
        lines.append(f"::{each.severity} {properties}::{_data(each.message)}\n")
    return "".join(lines)


def as_sarif(findings: list[Finding], rules: list[Rule]) -> str:
    """A SARIF 2.1.0 log, as GitHub's code scanning takes it."""
    index = {rule.code: number for number, rule in enumerate(rules)}
    driver = {
        "name": "samestep lint",
        "semanticVersion": _version(),
        "rules": [
            {
                "id": rule.code,
                "name": rule.name,
                "shortDescription": {"text": rule.summary},
                "fullDescription": {"text": rule.why},
                "help": {"text": rule.mend, "markdown": rule.mend},
                "defaultConfiguration": {"level": rule.severity},
                "properties": {"tags": [rule.group], "problem.severity": rule.severity},
            }
            for rule in rules
        ],
    }
    results = [
        {
            "ruleId": each.code,
            "ruleIndex": index[each.code],
            "level": each.severity,
            "message": {"text": each.message},
            "locations": [{"physicalLocation": _location(each)}],
            "partialFingerprints": {"samestep/v1": _fingerprint(each, number)},
        }
        for each, number in _numbered(findings)
    ]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, ensure_ascii=False) + "\n"


FORMATS: dict[str, Callable[[list[Finding], list[Rule]], str]] = {
    "text": as_text,
    "json": as_json,
    "github": as_github,
    "sarif": as_sarif,
}


def _location(finding: Finding) -> dict[str, object]:
    span = finding.span
    end_column = max(span.end_column, span.column) if span.end_line == span.line else span.end_column
    region = {
        "startLine": span.line,
        "startColumn": span.column,
        "endLine": max(span.line, span.end_line),
        "endColumn": max(1, end_column),
    }
    return {"artifactLocation": {"uri": _uri(finding.path)}, "region": region}


def _uri(path: str) -> str:
    pure = PurePath(path)
    return pure.as_uri() if pure.is_absolute() else quote(os.fsencode(pure.as_posix()))


def _numbered(findings: list[Finding]) -> list[tuple[Finding, int]]:
    """Each finding with how many of the same rule and message came before it in its file."""
    seen: Counter[tuple[str, str, str]] = Counter()
    numbered = []
    for each in findings:
        key = (each.path, each.code, each.message)
        numbered.append((each, seen[key]))
        seen[key] += 1
    return numbered


def _fingerprint(finding: Finding, number: int) -> str:
    import hashlib

    text = f"{finding.path}\0{finding.code}\0{finding.message}\0{number}"
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _version() -> str:
    try:
        return importlib.metadata.version("samestep")
    except importlib.metadata.PackageNotFoundError:
        return "0.0.0"
