"""Which ranks reach a line: tests of the rank around it, and returns before it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from samestep.lint.python.names import dotted_name
from samestep.lint.python.script import FunctionNode, Script, identifiers

_RANK = re.compile(
    r"(^|_)(rank|ranks|localrank|globalrank|procid|process_index|local_process_index)($|_)|^get_\w*rank$"
)
_MAIN = re.compile(
    r"(^|_)(is_)?(main|master|primary|chief|local_main|rank_?(zero|0))_?(process|proc|node|rank|worker|thread)?($|_)|^is_?main\b|"
    r"(^|_)(rank_?zero|rank_?0|zero_rank|is_master|is_main|is_root|is_first|should_save|is_distributed_master)(_|$|\b)"
)
_ONE_PROCESS = re.compile(r"world_?size|n_?procs?|num_processes|distributed|is_initialized|n_?gpus?$|nprocs")

_LOOSE = re.compile(
    r"gpu|device|proc|host|master|main|chief|root|leader|writer|log|zero|primary|coordinator|local|node"
)


def is_rank(node: ast.expr) -> bool:
    """Whether an expression is the rank of this process (`rank`, `args.local_rank`, `dist.get_rank()`)."""
    if isinstance(node, ast.Call):
        name = dotted_name(node.func).rpartition(".")[2]
        if name in ("int", "getenv") or name == "get":
            return any(is_rank(each) for each in node.args[:1])
        return bool(_RANK.search(name.lower()))
    if isinstance(node, ast.Subscript):
        return is_rank(node.slice)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID")
    return bool(_RANK.search(dotted_name(node).rpartition(".")[2].lower()))


def picks_ranks(test: ast.expr) -> bool:
    """Whether a test is true on some ranks and false on others, for certain."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return picks_ranks(test.operand) or is_rank(test.operand)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        if isinstance(test.ops[0], ast.Eq | ast.NotEq | ast.Gt):
            for one, other in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
                if is_rank(one) and isinstance(other, ast.Constant) and isinstance(other.value, int):
                    return other.value >= 0 and not isinstance(other.value, bool)
        return False
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(picks_ranks(each) for each in test.values)
    return bool(_MAIN.search(_called_name(test)))


def speaks_of_ranks(test: ast.AST) -> bool:
    """Whether a test has anything to do with ranks: a generous reading, to stay silent where code knows of them."""
    return any(_RANK.search(word) or _MAIN.search(word) for word in identifiers(test))


def may_pick_ranks(test: ast.AST) -> bool:
    """Whether a test might be one of the rank under another name (`if gpu == 0:`, `if logger is not None:`)."""
    return speaks_of_ranks(test) or any(_LOOSE.search(word) for word in identifiers(test))


def speaks_of_processes(test: ast.AST) -> bool:
    """Whether a test asks if there are several processes or devices at all."""
    return any(_ONE_PROCESS.search(word) for word in identifiers(test))


def tests_around(script: Script, node: ast.AST) -> Iterator[tuple[ast.If | ast.IfExp, bool]]:
    """The `if`s of the function that the node is under, innermost first, and whether in the body (True) or else."""
    child = node
    for parent in script.ancestors(node):
        if isinstance(parent, ast.If):
            if child in parent.body:
                yield parent, True
            elif child in parent.orelse:
                yield parent, False
        elif isinstance(parent, ast.IfExp) and child is not parent.test:
            yield parent, child is parent.body
        elif isinstance(parent, FunctionNode | ast.Lambda | ast.ClassDef):
            return
        child = parent


def returns_before(script: Script, node: ast.AST) -> Iterator[ast.If]:
    """The `if …: return` statements of the same function that stand before the node, on its way."""
    child: ast.AST = node
    for parent in script.ancestors(node):
        for body in (getattr(parent, "body", None), getattr(parent, "orelse", None)):
            if isinstance(body, list) and child in body:
                for statement in body[: body.index(child)]:
                    if isinstance(statement, ast.If) and _leaves(statement.body) and not statement.orelse:
                        yield statement
        if isinstance(parent, FunctionNode | ast.Lambda | ast.ClassDef):
            return
        child = parent


def knows_ranks(script: Script, node: ast.AST, depth: int = 4) -> bool:
    """Whether the code around a node, or around every call of its function in this file, speaks of ranks.

    Also where the function is not called in this file (who calls it may guard it), or is decorated or given away.
    """
    if any(may_pick_ranks(test.test) for test, _ in tests_around(script, node) if not _is_main_guard(test)):
        return True
    if any(may_pick_ranks(statement.test) for statement in returns_before(script, node)):
        return True
    function = script.function(node)
    if function is script.tree:
        return False
    if not isinstance(function, FunctionNode) or depth == 0:
        return True
    if any(speaks_of_ranks(each) for each in function.decorator_list):
        return True
    uses = [
        each
        for each in script.of_type(ast.Name, ast.Attribute)
        if (each.id if isinstance(each, ast.Name) else each.attr if isinstance(each, ast.Attribute) else "")
        == function.name
    ]
    return not uses or all(knows_ranks(script, use, depth - 1) for use in uses)


def _is_main_guard(test: ast.If | ast.IfExp) -> bool:
    return "__name__" in identifiers(test.test)


def _called_name(test: ast.expr) -> str:
    node = test.func if isinstance(test, ast.Call) else test
    return dotted_name(node).rpartition(".")[2].lower()


def _leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return | ast.Continue | ast.Raise)
