"""Which files to lint: those named, and the Python and shell files below the directories named."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from samestep.errors import SamestepError
from samestep.lint.registry import Language

_SUFFIXES: dict[str, Language] = {
    **dict.fromkeys((".py", ".pyw"), "python"),
    **dict.fromkeys((".sh", ".bash", ".zsh", ".ksh", ".slurm", ".sbatch", ".slm", ".pbs", ".lsf"), "shell"),
}
_SHEBANG = re.compile(rb"#!\s*\S*?(?:/env\s+(?:-S\s+)?)?(?P<program>python|pypy|bash|dash|zsh|ksh|sh)[\d.]*(?=\s|$)")
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "dist-packages"}


def find_files(paths: Iterable[str]) -> list[tuple[str, Language]]:
    """The files to lint with their languages, each once, in the order given and sorted within a directory.

    Raises `SamestepError` for a path that is not there, and for a named file of neither language.
    """
    found: dict[str, tuple[str, Language]] = {}
    for path in paths:
        for name, language in _find(path):
            found.setdefault(os.path.realpath(name), (name, language))
    return list(found.values())


def _find(path: str) -> Iterator[tuple[str, Language]]:
    if os.path.isdir(path):
        yield from _below(path)
        return
    if not os.path.lexists(path):
        raise SamestepError(f"there is no file or directory {path!r} to lint")
    if not os.path.isfile(path):
        raise SamestepError(f"{path!r} is not a regular file")
    language = language_of(path)
    if language is None:
        hint = "a Python file (.py) or a shell script (.sh, or with a #! line)"
        if path.endswith(".ipynb"):
            hint += "; export a notebook with `jupyter nbconvert --to script`"
        raise SamestepError(f"{path!r} cannot be linted: give {hint}")
    yield path, language


def _below(root: str) -> Iterator[tuple[str, Language]]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(
            each
            for each in folders
            if not each.startswith(".") and each not in _SKIPPED and not Path(folder, each, "pyvenv.cfg").exists()
        )
        for name in sorted(files):
            path = os.path.normpath(os.path.join(folder, name))
            if not name.startswith(".") and os.path.isfile(path):
                language = language_of(path)
                if language is not None:
                    yield path, language


def language_of(path: str) -> Language | None:
    """By the name's suffix, or by the `#!` line of a file without one; None for anything else."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    if suffix:
        return None
    try:
        with open(path, "rb") as file:
            found = _SHEBANG.match(file.read(200))
    except OSError:
        return None
    if found is None:
        return None
    return "python" if found["program"] in (b"python", b"pypy") else "shell"
