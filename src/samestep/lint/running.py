"""Linting what the command line names: files found, read, mended, and the findings written."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from dataclasses import replace

from samestep.errors import SamestepError
from samestep.lint.discovery import find_files
from samestep.lint.findings import Finding
from samestep.lint.fixing import apply_fixes, import_libcst
from samestep.lint.formats import FORMATS
from samestep.lint.linting import lint_bytes
from samestep.lint.pages import listing, page
from samestep.lint.registry import Language, Rule, choose, find_rule
from samestep.lint.rules.files import UNREADABLE
from samestep.notice import notice

_MOST_PASSES = 10


def explain(code: str) -> int:
    """Print the page of a rule."""
    _print(page(find_rule(code)))
    return 0


def list_rules() -> int:
    """Print one line a rule."""
    _print(listing())
    return 0


def lint_paths(paths: list[str], style: str, select: list[str], ignore: list[str], fix: bool) -> int:
    """Lint files and directories, print the findings, and return the exit code: 0 none, 1 some."""
    if style not in FORMATS:
        raise SamestepError(f"--format {style!r} is not known; give {', '.join(FORMATS)}")
    chosen = choose(_items("--select", select), _items("--ignore", ignore))
    if not paths:
        raise SamestepError("no script given; write samestep lint SCRIPT…: Python files, shell scripts, directories")
    files = find_files(paths)
    if fix and any(language == "python" for _, language in files):
        import_libcst()  # said before anything is changed
    if not files:
        notice(f"there is no Python or shell file in {', '.join(paths)}")
    findings: list[Finding] = []
    n_mended = 0
    for path, language in files:
        left, mended = _lint_file(path, language, chosen, fix)
        findings += left
        n_mended += mended
    _print(FORMATS[style](findings, chosen))
    _sum_up(findings, n_mended, len(files), style)
    return 1 if findings else 0


def _items(option: str, given: list[str]) -> list[str]:
    items = [part.strip() for text in given for part in text.split(",")]
    if given and not any(items):
        raise SamestepError(f"{option} names no rule; give codes such as SST101, SST2, or a family such as data")
    return [item for item in items if item]


def _lint_file(path: str, language: Language, rules: list[Rule], fix: bool) -> tuple[list[Finding], int]:
    """What is left in a file, and how many findings were mended."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        place = lint_bytes(path, b"\0", "python", [UNREADABLE])[0]
        found = [replace(place, message=f"it cannot be read: {error.strerror or error}")]
        return (found if UNREADABLE in rules else []), 0
    findings = lint_bytes(path, data, language, rules)
    if not fix:
        return findings, 0
    original, n_mended = data, 0
    for _ in range(_MOST_PASSES):
        data, mended = apply_fixes(data, language, findings)
        if not mended:
            break
        n_mended += len(mended)
        findings = lint_bytes(path, data, language, rules)
    if data != original:
        _write(path, data)
    return findings, n_mended


def _write(path: str, data: bytes) -> None:
    """Replace a file's contents at once, so that an interruption leaves the old or the new."""
    real = os.path.realpath(path)
    try:
        handle, temporary = tempfile.mkstemp(prefix=".samestep-", dir=os.path.dirname(real))
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            before = os.stat(real)
            os.chmod(temporary, before.st_mode & 0o7777)
            with contextlib.suppress(OSError):  # only root may give files away
                os.chown(temporary, before.st_uid, before.st_gid)
            os.replace(temporary, real)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise SamestepError(
            f"{path!r} cannot be written: {error.strerror or error}; nothing in it was changed"
        ) from None


def _print(text: str) -> None:
    """To stdout as UTF-8, whatever the terminal's encoding."""
    stream = getattr(sys.stdout, "buffer", None)
    if stream is None:
        sys.stdout.write(text)
    else:
        sys.stdout.flush()
        stream.write(text.encode("utf-8", errors="backslashreplace"))
        stream.flush()


def _sum_up(findings: list[Finding], n_mended: int, n_files: int, style: str) -> None:
    if n_mended:
        notice(f"mended {_count(n_mended, 'finding')}")
    if style == "text" and findings:
        fixable = sum(bool(each.fix) for each in findings)
        hint = f", {fixable} of them with --fix" if fixable else ""
        notice(f"{_count(len(findings), 'finding')} in {_count(n_files, 'file')}{hint}; --explain CODE says more")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
