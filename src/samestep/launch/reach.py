"""What a script does on every path, read from its source: does it set up a process group, start processes, need RANK?

A call counts as certain if the main program comes to it whatever its options and environment are: not under an `if`, a
loop's `else` or an `except`. Functions of the script's own are followed. What is read here is only a first guess, made
before anything runs; `samestep.launch.trigger` watches what the script really does.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from samestep.launch.markers import SPAWN, Kind, argument, marker
from samestep.launch.sources import Function, Module

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
_CALL_IT = ("fire.Fire", "typer.run", "absl.app.run", "app.run", "launch")
_DEPTH = 40


@dataclass(frozen=True)
class Finding:
    """One sign of a distributed program: `what` it is, the `place` of it, and whether every run comes there."""

    kind: Literal["group", "processes", "variable"]
    what: str
    place: str
    certain: bool


def find_signs(modules: dict[str, Module], devices: tuple[str, int]) -> list[Finding]:
    """All signs, the certain ones first and in the order in which the program comes to them."""
    reader = _Reader(modules, devices)
    main = modules.get("__main__")
    certain = reader.block(main, main.tree.body) if main is not None else []
    return [*(_sure(each) for each in certain), *reader.everywhere()]


def _sure(finding: Finding) -> Finding:
    return Finding(finding.kind, finding.what, finding.place, True)


class _Reader:
    def __init__(self, modules: dict[str, Module], devices: tuple[str, int]) -> None:
        self._modules = modules
        self._devices = devices
        self._active: list[int] = []
        self._imported: set[str] = set()
        self._groups = any(
            found is not None and found[0] == "group"
            for module in modules.values()
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Call)
            for found in [marker(module, node, devices)]
        )

    def everywhere(self) -> list[Finding]:
        """Every sign in the sources, on whatever path."""
        found: list[Finding] = []
        for module in self._modules.values():
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Call):
                    found += self._sign(module, node)
        return found

    def block(self, module: Module, body: Sequence[ast.stmt]) -> list[Finding]:
        """The signs on every path through some statements."""
        found: list[Finding] = []
        for statement in body:
            found += self._statement(module, statement)
        return found

    # ---- statements
    def _statement(self, module: Module, node: ast.stmt) -> list[Finding]:
        if isinstance(node, ast.If):
            return self._if(module, node)
        if isinstance(node, ast.Import | ast.ImportFrom):
            return self._import(module, node)
        if isinstance(node, Function | ast.ClassDef):
            return self._expressions(module, node.decorator_list)
        if isinstance(node, ast.Try):
            return self.block(module, [*node.body, *node.orelse, *node.finalbody])
        if isinstance(node, ast.With | ast.AsyncWith):
            inside = self._expressions(module, [item.context_expr for item in node.items])
            return inside + self.block(module, node.body)
        if isinstance(node, ast.For | ast.AsyncFor):
            return self._expressions(module, [node.iter]) + self.block(module, node.body)
        if isinstance(node, ast.While):
            return self._expressions(module, [node.test]) + self.block(module, node.body)
        if isinstance(node, ast.Match):
            return self._expressions(module, [node.subject])
        return self._expressions(module, [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)])

    def _if(self, module: Module, node: ast.If) -> list[Finding]:
        known = self._known(module, node.test)
        before = self._expressions(module, [node.test])
        if known is not None:
            return before + self.block(module, node.body if known else node.orelse)
        first, second = self.block(module, node.body), self.block(module, node.orelse)
        # Which of the two it will be is open; a program that starts processes on one path is its own launcher.
        both = [*first, *second] if first and second else []
        return before + sorted(both, key=lambda each: each.kind != "processes")

    def _known(self, module: Module, test: ast.expr) -> bool | None:
        """The outcome of a test that does not depend on how the script is started."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._known(module, test.operand)
            return None if inner is None else not inner
        if isinstance(test, ast.BoolOp):
            values = [self._known(module, each) for each in test.values]
            decisive = isinstance(test.op, ast.Or)
            if decisive in values:
                return decisive
            return None if None in values else not decisive
        if isinstance(test, ast.Constant):
            return bool(test.value)
        if isinstance(test, ast.Call):
            name = module.dotted(test.func)
            if name == "torch.cuda.is_available":
                return self._devices[0] == "cuda"
            if name.startswith("torch.distributed") and name.endswith(".is_available"):
                return True
            if name.startswith("torch.distributed") and name.endswith(".is_initialized"):
                return False  # nothing has been set up before the first set-up
        text = ast.unparse(test).replace('"', "'")
        if text in ("__name__ == '__main__'", "'__main__' == __name__"):
            return module.main
        return None

    def _import(self, module: Module, node: ast.Import | ast.ImportFrom) -> list[Finding]:
        """A module of the script's own runs when it is imported."""
        names = [module.aliases.get(alias.asname or alias.name, alias.name) for alias in node.names]
        names += [name.rpartition(".")[0] for name in names]
        found: list[Finding] = []
        for name in names:
            if name in self._modules and name not in self._imported:
                self._imported.add(name)
                found += self.block(self._modules[name], self._modules[name].tree.body)
        return found

    # ---- expressions
    def _expressions(self, module: Module, nodes: Iterable[ast.expr]) -> list[Finding]:
        found: list[Finding] = []
        for node in nodes:
            found += self._expression(module, node)
        return found

    def _expression(self, module: Module, node: ast.AST) -> list[Finding]:
        if isinstance(node, ast.Lambda | ast.GeneratorExp):
            return []
        if isinstance(node, ast.IfExp):
            return self._expression(module, node.test)
        if isinstance(node, ast.BoolOp):
            return self._expression(module, node.values[0])
        found: list[Finding] = []
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr | ast.keyword | ast.comprehension):
                found += self._expression(module, child)
        if isinstance(node, ast.Call):
            found += self._sign(module, node) or self._followed(module, node)
        if isinstance(node, ast.Subscript):
            found += self._variable(module, node)
        return found

    def _sign(self, module: Module, call: ast.Call) -> list[Finding]:
        sign = marker(module, call, self._devices)
        if sign is None and self._groups:
            sign = self._spawn(module, call)
        return [Finding(sign[0], sign[1], module.place(call), False)] if sign is not None else []

    def _spawn(self, module: Module, call: ast.Call) -> tuple[Kind, str] | None:
        name = module.dotted(call.func)
        context = isinstance(call.func, ast.Attribute) and call.func.attr == "Process"
        if name not in SPAWN and not context:
            return None
        if name.endswith("Process") or context:
            target = argument(call, "target", 1)
            if target is None or not self._sets_up(module, target):
                return None
            return "processes", f"{ast.unparse(call.func)}(target={ast.unparse(target)})"
        target = argument(call, "fn", 0)
        return "processes", f"{ast.unparse(call.func)}({ast.unparse(target) if target is not None else ''}…)"

    def _sets_up(self, module: Module, target: ast.expr) -> bool:
        """Whether a function of the script's own may set up a process group, on whatever path."""
        waiting = self._definitions(module, target)
        seen: set[int] = set()
        while waiting:
            home, function = waiting.pop()
            if id(function) in seen:
                continue
            seen.add(id(function))
            for node in ast.walk(function):
                if isinstance(node, ast.Call):
                    if marker(home, node, self._devices) is not None:
                        return True
                    waiting += self._definitions(home, node.func)
                    waiting += [each for part in node.args for each in self._definitions(home, part)]
        return False

    def _variable(self, module: Module, node: ast.Subscript) -> list[Finding]:
        if not isinstance(node.ctx, ast.Load) or module.dotted(node.value) not in ("os.environ", "environ"):
            return []
        name = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if name not in VARIABLES:
            return []
        return [Finding("variable", f"os.environ[{name!r}]", module.place(node), False)]

    def _followed(self, module: Module, call: ast.Call) -> list[Finding]:
        found: list[Finding] = []
        parts = [call.func]
        if module.dotted(call.func).endswith(_CALL_IT):
            parts += call.args[:1]
        for home, function in [each for part in parts for each in self._definitions(module, part)]:
            if id(function) in self._active or len(self._active) > _DEPTH:
                continue
            self._active.append(id(function))
            found += self.block(home, function.body)
            self._active.pop()
        return found

    def _definitions(self, module: Module, node: ast.expr) -> list[tuple[Module, Function]]:
        """The functions of the script's own that a name or attribute may stand for; a class stands for its __init__."""
        name = module.dotted(node)
        if name in module.functions:
            return [(module, module.functions[name])]
        home, _, last = name.rpartition(".")
        if home in self._modules:
            other = self._modules[home]
            if last in other.functions:
                return [(other, other.functions[last])]
            return [(other, each) for each in other.methods.get(last, [])]
        label = node.attr if isinstance(node, ast.Attribute) else name
        found = [(each, method) for each in self._modules.values() for method in each.methods.get(label, [])]
        return found if len(found) == 1 else []
