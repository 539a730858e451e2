"""What a script will choose, read from its source before anything is started: then nothing has to be started twice.

Only what is certain is taken: the first choice that the main program comes to, under conditions that can be worked out
from constants and from the script's own command line (`argparse`). Whatever else it does is seen when it runs
(`samestep.launch.device_hooks`).
"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from samestep.launch.device_choice import DeviceChoice
from samestep.launch.script import ScriptTarget

VARIABLE = "CUDA_VISIBLE_DEVICES"
_LONGEST = 2_000_000
_DEPTH = 20


#: What may use CUDA, or ask for it: `torch.cuda.…`, `x.cuda()`, `x.to(device)`.
_MAY_USE_CUDA = ("cuda", "to", "is_available", "device_count", "accelerator")
#: Functions that look at the options and leave them as they are.
_ONLY_LOOK = ("print", "str", "repr", "vars", "len", "getattr", "hasattr", "isinstance", "pprint.pprint", "pprint")
#: Words of a parser that change nothing but its help.
_ONLY_HELP = {"description", "prog", "usage", "epilog", "formatter_class"}
#: Methods of a parser after which the options known so far still are what they were.
_KEEP_OPTIONS = ("parse_args", "add_argument", "add_argument_group", "add_mutually_exclusive_group")


class _Unknown:
    """A value that only running the script can tell."""


UNKNOWN = _Unknown()


class _Uncertain(Exception):
    """The program may choose here, or not: nothing that comes later is certain."""


@dataclass
class _Options:
    """An `ArgumentParser`: the options that it was given, by the name of their attribute, and what they will be."""

    known: dict[str, Any] = field(default_factory=dict)


def foresee(target: ScriptTarget) -> DeviceChoice | None:
    """The script's choice of CUDA_VISIBLE_DEVICES, where its source says it for certain; None otherwise."""
    if target.path is None or not os.path.isfile(target.path):
        return None
    try:
        with open(target.path, "rb") as file:
            source = file.read(_LONGEST)
        if VARIABLE.encode() not in source:
            return None
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # Python itself will say what is wrong with it
    reader = _Reader(tree, target)
    try:
        return reader.block(tree.body, {}, 0)
    except (_Uncertain, RecursionError):
        return None


class _Reader:
    """Follows the main program through what can be worked out."""

    def __init__(self, tree: ast.Module, target: ScriptTarget) -> None:
        self._functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self._target = target
        self._globals: dict[str, Any] = {}

    def block(self, body: Sequence[ast.stmt], names: dict[str, Any], depth: int) -> DeviceChoice | None:
        """The first choice in some statements; raises `_Uncertain` if it cannot be told whether there is one."""
        names = self._globals if depth == 0 else names
        for node in body:
            found = self._statement(node, names, depth)
            if found is not None:
                return found
            if isinstance(node, ast.Return | ast.Raise):
                return None
        return None

    def _statement(self, node: ast.stmt, names: dict[str, Any], depth: int) -> DeviceChoice | None:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom | ast.Pass):
            return None
        if isinstance(node, ast.Global):
            for name in node.names:
                names[name] = self._globals[name] = UNKNOWN
            return None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            return self._assign(node.targets[0], node.value, node, names, depth)
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            return self._assign(node.target, node.value, node, names, depth)
        if isinstance(node, ast.Expr):
            return self._expression(node.value, node, names, depth)
        if isinstance(node, ast.If):
            return self._if(node, names, depth)
        if isinstance(node, ast.With):
            self._forget(node, names, inside=False)
            return self.block(node.body, names, depth)
        self._must_not_choose(node)
        self._forget(node, names)
        return None

    def _assign(
        self, target: ast.expr, value: ast.expr, node: ast.stmt, names: dict[str, Any], depth: int
    ) -> DeviceChoice | None:
        if _is_variable(target):
            return self._chosen(self._value(value, names), node)
        found = self._call(value, names, depth)
        if isinstance(target, ast.Name):
            names[target.id] = self._value(value, names)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            options = names.get(target.value.id)
            if isinstance(options, dict):
                options[target.attr] = self._value(value, names)
        else:
            self._forget(target, names)
        return found

    def _chosen(self, value: Any, node: ast.stmt) -> DeviceChoice:
        if not isinstance(value, str):
            raise _Uncertain
        place = f"{os.path.basename(self._target.path or '')}, line {node.lineno}"
        return DeviceChoice(value, None, f"os.environ[{VARIABLE!r}] = {value!r} ({place})")

    def _expression(self, value: ast.expr, node: ast.stmt, names: dict[str, Any], depth: int) -> DeviceChoice | None:
        if isinstance(value, ast.Call):
            name = ast.unparse(value.func)
            if name in ("os.environ.setdefault", "environ.setdefault", "os.putenv") and _is_name(value.args[:1]):
                if name.endswith("setdefault") and VARIABLE in os.environ:
                    return None
                return self._chosen(self._value(value.args[1], names) if len(value.args) > 1 else UNKNOWN, node)
            if isinstance(value.func, ast.Attribute) and value.func.attr == "add_argument":
                self._add_option(value, names)
                return None
        return self._call(value, names, depth)

    def _call(self, value: ast.expr, names: dict[str, Any], depth: int) -> DeviceChoice | None:
        """Follow a call of a function of the script's own."""
        if not isinstance(value, ast.Call):
            self._must_not_choose(value)
            return None
        function = self._functions.get(value.func.id) if isinstance(value.func, ast.Name) else None
        for part in [*value.args, *(word.value for word in value.keywords)]:
            found = self._call(part, names, depth)
            if found is not None:
                return found
        if function is None:
            self._must_not_choose(value)
            self._handed_over(value, names)
            return None
        if depth >= _DEPTH:
            raise _Uncertain
        inside = {argument.arg: UNKNOWN for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
        for argument, given in zip(function.args.args, value.args, strict=False):
            inside[argument.arg] = self._value(given, names)
        inside.update({word.arg: self._value(word.value, names) for word in value.keywords if word.arg is not None})
        return self.block(function.body, {**self._globals, **inside}, depth + 1)

    def _handed_over(self, call: ast.Call, names: dict[str, Any]) -> None:
        """Code that is not followed may change what it is given."""
        if ast.unparse(call.func) in _ONLY_LOOK:
            return
        owner = [call.func.value] if isinstance(call.func, ast.Attribute) else []
        for part in [*owner, *call.args, *(word.value for word in call.keywords)]:
            value = self._value(part, names)
            if isinstance(value, dict) and part not in owner:
                value.clear()
            if isinstance(value, _Options) and not (part in owner and _attribute(call) in _KEEP_OPTIONS):
                value.known.clear()

    def _if(self, node: ast.If, names: dict[str, Any], depth: int) -> DeviceChoice | None:
        outcome = self._value(node.test, names)
        if outcome is not UNKNOWN:
            return self.block(node.body if outcome else node.orelse, names, depth)
        self._must_not_choose(node)
        self._forget(node, names)
        return None

    def _must_not_choose(self, node: ast.AST) -> None:
        """What is not followed must not hold a choice, in itself or in a function that it calls."""
        waiting, seen = [node], set()
        while waiting:
            for each in ast.walk(waiting.pop()):
                if isinstance(each, ast.Constant) and each.value == VARIABLE:
                    raise _Uncertain
                if isinstance(each, ast.Attribute) and each.attr in _MAY_USE_CUDA:
                    raise _Uncertain  # after that, the variable has no effect any more
                if isinstance(each, ast.Name) and each.id in self._functions and each.id not in seen:
                    seen.add(each.id)
                    waiting.append(self._functions[each.id])

    @staticmethod
    def _forget(node: ast.AST, names: dict[str, Any], inside: bool = True) -> None:
        """Whatever is set in what was not followed is not known any more."""
        parts = ast.walk(node) if inside else [each for item in getattr(node, "items", ()) for each in ast.walk(item)]
        for each in parts:
            if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load):
                names[each.id] = UNKNOWN

    # ------------------------------------------------------------------ argparse
    def _add_option(self, call: ast.Call, names: dict[str, Any]) -> None:
        options = self._value(call.func.value, names) if isinstance(call.func, ast.Attribute) else UNKNOWN
        if not isinstance(options, _Options):
            return
        words = {word.arg: word.value for word in call.keywords}
        flags = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        if not flags or len(flags) < len(call.args):
            return
        longest = next((flag for flag in flags if flag.startswith("--")), flags[0])
        named = self._value(words["dest"], names) if "dest" in words else longest.lstrip("-").replace("-", "_")
        if not isinstance(named, str):
            return
        simple = set(words) <= {"default", "type", "help", "dest", "metavar", "choices", "required"}
        kind = words.get("type")
        as_text = kind is None or (isinstance(kind, ast.Name) and kind.id in ("str", "int"))
        if not simple or not as_text or not flags[0].startswith("-"):
            options.known[named] = UNKNOWN
            return
        default = self._value(words["default"], names) if "default" in words else None
        options.known[named] = _given(flags, self._target.args, kind, default)

    # ------------------------------------------------------------------ values
    def _value(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        """The value of an expression, or UNKNOWN."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return "__main__" if node.id == "__name__" else names.get(node.id, UNKNOWN)
        if isinstance(node, ast.Attribute):
            owner = self._value(node.value, names)
            return owner.get(node.attr, UNKNOWN) if isinstance(owner, dict) else UNKNOWN
        if isinstance(node, ast.JoinedStr):
            return self._joined(node, names)
        if isinstance(node, ast.List | ast.Tuple):
            parts = [self._value(each, names) for each in node.elts]
            return UNKNOWN if UNKNOWN in parts else parts
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self._value(node.operand, names)
            return UNKNOWN if inner is UNKNOWN else not inner
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compared(node, names)
        if isinstance(node, ast.Call):
            return self._result(node, names)
        return UNKNOWN

    def _joined(self, node: ast.JoinedStr, names: Mapping[str, Any]) -> Any:
        parts: list[str] = []
        for each in node.values:
            plain = isinstance(each, ast.FormattedValue) and each.format_spec is None and each.conversion == -1
            value = self._value(each.value, names) if isinstance(each, ast.FormattedValue) else self._value(each, names)
            if value is UNKNOWN or (isinstance(each, ast.FormattedValue) and not plain):
                return UNKNOWN
            parts.append(str(value))
        return "".join(parts)

    def _compared(self, node: ast.Compare, names: Mapping[str, Any]) -> Any:
        left, right = self._value(node.left, names), self._value(node.comparators[0], names)
        if left is UNKNOWN or right is UNKNOWN:
            return UNKNOWN
        answers = {ast.Eq: left == right, ast.NotEq: left != right, ast.Is: left is right, ast.IsNot: left is not right}
        return answers.get(type(node.ops[0]), UNKNOWN)

    def _result(self, node: ast.Call, names: Mapping[str, Any]) -> Any:
        function = ast.unparse(node.func)
        arguments = [self._value(each, names) for each in node.args]
        if function in ("argparse.ArgumentParser", "ArgumentParser"):
            return _Options() if {word.arg for word in node.keywords} <= _ONLY_HELP else UNKNOWN
        owner = self._value(node.func.value, names) if isinstance(node.func, ast.Attribute) else UNKNOWN
        if isinstance(owner, _Options) and isinstance(node.func, ast.Attribute):
            # `parse_known_args` gives a pair, of which nothing is known.
            return dict(owner.known) if node.func.attr == "parse_args" and not node.args else UNKNOWN
        if node.keywords or UNKNOWN in arguments:
            return UNKNOWN
        if function == "str" and len(arguments) == 1 and isinstance(arguments[0], str | int):
            return str(arguments[0])
        if isinstance(owner, str) and isinstance(node.func, ast.Attribute) and node.func.attr == "join":
            parts = arguments[0] if arguments and isinstance(arguments[0], list) else [None]
            words = [each for each in parts if isinstance(each, str)]
            return owner.join(words) if len(words) == len(parts) else UNKNOWN
        return UNKNOWN


def _given(flags: list[str], words: Sequence[str], kind: ast.expr | None, default: Any) -> Any:
    """The value of an option on the script's command line, as argparse reads it; its default if it is not there."""
    found: Any = default
    text = False
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if name in flags and equals:
            found, text = value, True
        elif word in flags:
            if not rest or rest[0].startswith("-"):
                return UNKNOWN
            found, text = rest.pop(0), True
        elif word.startswith("-") and any(
            flag.startswith(name) or (len(flag) == 2 and word.startswith(flag)) for flag in flags
        ):
            return UNKNOWN  # an abbreviation, or a value that sticks to its letter
    if not isinstance(kind, ast.Name) or kind.id != "int" or not text:
        return found
    return int(found) if found.lstrip("-").isdigit() else UNKNOWN


def _attribute(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _is_variable(node: ast.expr) -> bool:
    """`os.environ["CUDA_VISIBLE_DEVICES"]`."""
    return (
        isinstance(node, ast.Subscript)
        and ast.unparse(node.value) in ("os.environ", "environ")
        and _is_name([node.slice])
    )


def _is_name(nodes: Sequence[ast.expr]) -> bool:
    return bool(nodes) and isinstance(nodes[0], ast.Constant) and nodes[0].value == VARIABLE
