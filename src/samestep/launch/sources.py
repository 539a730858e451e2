"""The source text of a script and of the modules of its own that it imports, parsed but never executed."""

from __future__ import annotations

import ast
import os
import site
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from samestep.launch.script import ScriptTarget

_MOST_MODULES = 300
_LONGEST = 2_000_000

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """One parsed file: what its names stand for, and what it defines.

    `aliases` maps a local name to the dotted name it was imported as; `constants` the names that are assigned one
    literal and nothing else.
    """

    path: str
    name: str
    main: bool
    tree: ast.Module
    aliases: dict[str, str] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    methods: dict[str, list[Function]] = field(default_factory=dict)
    constants: dict[str, object] = field(default_factory=dict)

    def place(self, node: ast.AST) -> str:
        """Where a node stands, for the user: `train.py, line 30`."""
        return f"{os.path.relpath(self.path)}, line {getattr(node, 'lineno', 0)}"

    def dotted(self, node: ast.expr) -> str:
        """The full name of `dist.init_process_group` and its like; empty for what is no chain of names."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self.aliases.get(node.id, node.id), *reversed(parts)])


def read_sources(target: ScriptTarget) -> dict[str, Module]:
    """The modules of a run that belong to the user, the main one first under the name `__main__`; none if unreadable.

    Only files are read: what a package of the target's does at import is not run here.
    """
    path, name = _main_file(target)
    if path is None:
        return {}
    roots = list(dict.fromkeys([os.path.dirname(os.path.realpath(path)), os.getcwd()]))
    if target.module is not None:
        roots.reverse()
    found: dict[str, Module] = {}
    waiting: list[tuple[str, str]] = [("__main__", path)]
    while waiting and len(found) < _MOST_MODULES:
        label, file = waiting.pop(0)
        module = _parse(file, name if label == "__main__" else label, label == "__main__")
        if module is None:
            continue
        found[label] = module
        known = {each for each, _ in waiting}
        for wanted in _imported(module):
            other = _own_file(wanted, roots)
            if other is not None and wanted not in found and wanted not in known:
                waiting.append((wanted, other))
                known.add(wanted)
    return found


def _main_file(target: ScriptTarget) -> tuple[str | None, str]:
    if target.module is not None:
        return _own_file(target.module, [os.getcwd()], main=True), target.module
    path = target.path or ""
    if os.path.isdir(path):
        path = os.path.join(path, "__main__.py")
    return (os.path.abspath(path), "") if os.path.isfile(path) else (None, "")


def _own_file(name: str, roots: list[str], main: bool = False) -> str | None:
    """The file of a module below one of `roots`, unless it is an installed one."""
    if not name or name.split(".")[0] in sys.stdlib_module_names:
        return None
    for root in roots:
        base = os.path.join(root, *name.split("."))
        tails = ["__main__.py", "__init__.py"] if main else ["__init__.py"]
        for path in [*(os.path.join(base, tail) for tail in tails), base + ".py"]:
            if os.path.isfile(path) and not _installed(path):
                return path
    return None


def _installed(path: str) -> bool:
    places = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()]
    return os.path.realpath(path).startswith(tuple(os.path.realpath(place) + os.sep for place in places if place))


def _parse(path: str, name: str, main: bool) -> Module | None:
    try:
        with open(path, "rb") as file:
            text = file.read(_LONGEST + 1)
        if len(text) > _LONGEST:
            return None
        tree = ast.parse(text, path)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # Python itself will say what is wrong with it
    module = Module(path, name, main, tree)
    _collect(module)
    return module


def _collect(module: Module) -> None:
    stored: Counter[str] = Counter()
    literals: dict[str, object] = {}
    methods: set[int] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                module.aliases[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(module, node)
            for alias in node.names:
                module.aliases[alias.asname or alias.name] = f"{source}.{alias.name}" if source else alias.name
        elif isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, Function):
                    label = node.name if each.name == "__init__" else each.name
                    module.methods.setdefault(label, []).append(each)
                    methods.add(id(each))
        elif isinstance(node, Function) and id(node) not in methods:
            module.functions.setdefault(node.name, node)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if isinstance(node.value, ast.Constant):
                literals[node.targets[0].id] = node.value.value
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            stored[node.id] += 1
        elif isinstance(node, ast.arg):
            stored[node.arg] += 2  # whatever it is called with
    module.constants = {label: value for label, value in literals.items() if stored[label] == 1}


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = module.name.split(".") if module.name else []
    if os.path.basename(module.path) not in ("__init__.py", "__main__.py"):
        package = package[:-1]
    package = package[: len(package) - node.level + 1]
    return ".".join([*package, *([node.module] if node.module else [])])


def _imported(module: Module) -> Iterator[str]:
    """The names that may be modules among all that is imported."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                yield from (".".join(parts[: at + 1]) for at in range(len(parts)))
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(module, node)
            parts = source.split(".") if source else []
            yield from (".".join(parts[: at + 1]) for at in range(len(parts)))
            yield from (f"{source}.{alias.name}" if source else alias.name for alias in node.names)
