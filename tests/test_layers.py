"""The packages depend on each other in one direction only (DESIGN §6)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "samestep"

#: Modules at the top of the package that know of no device, launcher or tensor of ours: anyone may import them.
BASE = {
    "errors",
    "exchange",
    "heap",
    "ledger",
    "nest",
    "notice",
    "numerics",
    "place",
    "threads",
    "torch_private",
    "unsplit",
    "waiting",
    "world",
}
#: What each package may import, besides itself and the base. What is not listed (the command line, the session, the
#: public functions, the package itself) composes the others and is imported by none of them.
ALLOWED: dict[str, set[str]] = {
    "devices": set(),
    "commands": {"devices"},
    "globalview": set(),
    "replica": set(),
    "launch": {"devices"},
    "lint": set(),
    "parallel": {"globalview"},
    "data": {"globalview", "parallel"},
    "xla": {"devices", "launch"},
    "tools": {"devices", "globalview", "launch", "parallel", "data", "replica"},
}


def _part(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def _imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and part (package or top-level module) of each import of ours, wherever in the file it stands."""
    package = ["samestep", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "samestep" else [module]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "samestep":
                yield node.lineno, parts[1] if len(parts) > 1 else "__init__"


def _files() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if _part(path) in BASE | ALLOWED.keys())


@pytest.mark.parametrize("path", _files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_nothing_higher(path: Path) -> None:
    part = _part(path)
    allowed = BASE | {part} | ALLOWED.get(part, set())
    wrong = [f"line {line}: samestep.{name}" for line, name in _imported(path) if name not in allowed]
    assert not wrong, f"{part} may import {sorted(allowed)} only"


def test_every_package_has_its_place() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages == ALLOWED.keys()


def test_importing_the_package_imports_no_torch() -> None:
    """`samestep --help` and a mistyped command answer at once."""
    for name in ("__init__", "__main__", "cli"):
        top = ast.parse((SOURCE / f"{name}.py").read_text()).body
        modules = [alias.name for node in top if isinstance(node, ast.Import) for alias in node.names]
        modules += [node.module or "" for node in top if isinstance(node, ast.ImportFrom)]
        assert not [module for module in modules if module.split(".")[0] == "torch"], name
