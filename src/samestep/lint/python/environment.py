"""Where a Python file gives environment variables their values, for itself or for a child process."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from samestep.lint.python.script import Script, argument


@dataclass(frozen=True)
class Setting:
    """One variable given a value. `own`: in this process's environment; `default`: only where it is not set."""

    name: str
    name_node: ast.AST
    value: ast.expr
    node: ast.stmt | ast.Call
    own: bool
    default: bool = False


def settings(script: Script) -> list[Setting]:
    """Every setting of an environment variable, in source order."""
    return list(_settings(script))


def _settings(script: Script) -> Iterator[Setting]:
    for node in script.of_type(ast.Assign, ast.Call):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and (owner := _owner(script, target.value)) is not None:
                    name = script.value(target.slice).text
                    if name is not None:
                        yield Setting(name, target.slice, node.value, node, owner)
        elif isinstance(node, ast.Call):
            yield from _from_call(script, node)


def _from_call(script: Script, call: ast.Call) -> Iterator[Setting]:
    name = script.name(call)
    if name in ("os.environ.setdefault", "os.putenv") and len(call.args) == 2:
        variable = script.value(call.args[0]).text
        if variable is not None:
            yield Setting(variable, call.args[0], call.args[1], call, True, name.endswith("setdefault"))
    elif name == "os.environ.update":
        yield from _entries(script, call, call.args[0] if call.args else None, True)
        for keyword in call.keywords:
            if keyword.arg is not None:
                yield Setting(keyword.arg, keyword, keyword.value, call, True)
    elif isinstance(call.func, ast.Name) and call.func.id == "dict" and script.value(call).kind == "environ":
        for keyword in call.keywords:
            if keyword.arg is not None:
                yield Setting(keyword.arg, keyword, keyword.value, call, False)
    elif name.startswith("subprocess."):
        yield from _entries(script, call, argument(call, "env"), False)


def _entries(script: Script, call: ast.Call, given: ast.expr | None, own: bool) -> Iterator[Setting]:
    if isinstance(given, ast.Dict):
        for key, value in zip(given.keys, given.values, strict=True):
            name = script.value(key).text
            if key is not None and name is not None:
                yield Setting(name, key, value, call, own)


def _owner(script: Script, node: ast.expr) -> bool | None:
    """True for os.environ, False for a copy of it, None for something else."""
    if script.name(node) == "os.environ":
        return True
    return False if script.value(node).kind == "environ" else None
