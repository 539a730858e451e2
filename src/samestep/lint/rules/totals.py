"""SST3: losses added up over batches."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from samestep.lint.findings import Finding, ReplaceExpression
from samestep.lint.python.names import dotted_name
from samestep.lint.python.reach import tests_around
from samestep.lint.python.script import Script, argument, is_open
from samestep.lint.registry import Rule, prose, source
from samestep.lint.rules.samplers import EVALUATION

GRAPH_KEPT = Rule(
    code="SST304",
    name="loss-kept-with-its-graph",
    severity="warning",
    summary="Losses are added up with their graphs, which grow with every step.",
    why=prose("""
        `total += loss` makes a tensor that remembers every step's graph until the epoch ends: memory grows on the
        device that holds the loss. With DataParallel that is GPU 0, which is the fullest anyway."""),
    wrong=source("""
        import torch


        def train(model, loader, optimizer):
            total = 0
            for images, labels in loader:
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                total += loss
            return total
        """),
    right=source("""
        import torch


        def train(model, loader, optimizer):
            total = 0
            for images, labels in loader:
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                total += loss.item()
            return total
        """),
    mend="Add `loss.detach()`, or `loss.item()` if a number is wanted.",
    fixed=source("""
        import torch


        def train(model, loader, optimizer):
            total = 0
            for images, labels in loader:
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                total += loss.detach()
            return total
        """),
)


@GRAPH_KEPT.python
def _graph_kept(script: Script) -> Iterator[Finding]:
    for node in script.of_type(ast.AugAssign):
        if (
            not isinstance(node, ast.AugAssign)
            or not isinstance(node.op, ast.Add)
            or not isinstance(node.value, ast.Name)
        ):
            continue
        loops = list(script.inside(node, ast.For, ast.While))
        total, loss = dotted_name(node.target), node.value.id
        if not loops or not total or not _differentiated_before(script, loops[0], node, loss):
            continue
        reset = any(
            isinstance(each, ast.Assign | ast.AnnAssign) and total in _targets(each) for each in script.walk(loops[0])
        )
        function = script.function(node)
        backward = any(
            dotted_name(each.func) == f"{total}.backward"
            for each in script.calls()
            if script.function(each) is function
        )
        stored = _last_stored(script, loops[0], node, loss)
        if not reset and not backward and stored not in ("item", "detach", "float"):
            fix = ReplaceExpression(script.span(node.value), f"{loss}.detach()")
            yield GRAPH_KEPT.at(script, node, f"{total} keeps the graph of every {loss} added to it", fix)


def _differentiated_before(script: Script, loop: ast.AST, node: ast.AST, loss: str) -> bool:
    return any(
        isinstance(each, ast.Call) and dotted_name(each.func) == f"{loss}.backward" and _same_branch(script, each, node)
        for each in script.walk(loop)
    )


def _same_branch(script: Script, one: ast.AST, other: ast.AST) -> bool:
    return [t for t, _ in tests_around(script, one)] == [t for t, _ in tests_around(script, other)]


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    return [dotted_name(each) for each in (node.targets if isinstance(node, ast.Assign) else [node.target])]


def _last_stored(script: Script, loop: ast.AST, node: ast.AST, name: str) -> str:
    """The last function called in what the loop gives to `name`: `item` for `loss = loss.item()`."""
    found = ""
    for each in script.walk(loop):
        if isinstance(each, ast.Assign) and name in _targets(each) and isinstance(each.value, ast.Call):
            found = dotted_name(each.value.func).rpartition(".")[2] or getattr(each.value.func, "attr", "")
            if found in ("item", "detach", "float"):
                return found
    return found


MEAN_OF_MEANS = Rule(
    code="SST301",
    name="mean-of-batch-means",
    severity="warning",
    summary="An evaluation averages the means of batches of unequal size.",
    why=prose("""
        The last batch is usually smaller, and its mean counts as much as the others: each of its samples weighs more.
        The result depends on the batch size, and so on the number of devices that the batch is made for: two runs of
        the same weights report different losses (transformers#34242, fairseq#494)."""),
    wrong=source("""
        import torch
        from torch.utils.data import DataLoader


        @torch.no_grad()
        def evaluate(model, test_set):
            loader = DataLoader(test_set, batch_size=64)
            total = 0.0
            for images, labels in loader:
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                total += loss.item()
            return total / len(loader)
        """),
    right=source("""
        import torch
        from torch.utils.data import DataLoader


        @torch.no_grad()
        def evaluate(model, test_set):
            loader = DataLoader(test_set, batch_size=64)
            total = 0.0
            for images, labels in loader:
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                total += loss.item() * len(images)
            return total / len(test_set)
        """),
    mend="Weigh each batch by its size, `loss.item() * len(images)`, and divide by the number of samples.",
)


@MEAN_OF_MEANS.python
def _mean_of_means(script: Script) -> Iterator[Finding]:
    for node in script.of_type(ast.BinOp, ast.AugAssign):
        if not isinstance(node, ast.BinOp | ast.AugAssign) or not isinstance(node.op, ast.Div):
            continue
        total, length = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
        loader = _length_of(length)
        made = script.value(loader).call
        if loader is None or made is None or script.value(loader).kind != "loader" or is_open(made):
            continue
        drops = argument(made, "drop_last", 8)
        if drops is not None or argument(made, "batch_sampler", 4) is not None or not dotted_name(total):
            continue
        size = argument(made, "batch_size", 1)
        if size is None or script.value(size).whole_number == 1:
            continue
        if _evaluates(script, node, loader) and _adds_means(script, node, dotted_name(total), dotted_name(loader)):
            message = f"{dotted_name(total)} adds means of batches, and the last batch may be smaller"
            yield MEAN_OF_MEANS.at(script, node, message)


def _length_of(node: ast.expr) -> ast.expr | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len" and len(node.args) == 1:
        return node.args[0]
    return None


def _evaluates(script: Script, node: ast.AST, loader: ast.expr) -> bool:
    function = script.function(node)
    named = EVALUATION.search(getattr(function, "name", "")) is not None
    return named or EVALUATION.search(dotted_name(loader).rpartition(".")[2]) is not None


def _adds_means(script: Script, node: ast.AST, total: str, loader: str) -> bool:
    """Whether a loop over the loader adds nothing but `loss.item()`, a mean, to the total."""
    added = [
        each
        for each in script.walk(script.function(node))
        if isinstance(each, ast.AugAssign) and dotted_name(each.target) == total and isinstance(each.op, ast.Add)
    ]
    for each in added:
        loops = [loop for loop in script.inside(each, ast.For) if isinstance(loop, ast.For)]
        over = loops and loader in [
            dotted_name(n) for n in ast.walk(loops[0].iter) if isinstance(n, ast.Name | ast.Attribute)
        ]
        mean = isinstance(each.value, ast.Call) and isinstance(each.value.func, ast.Attribute)
        if (
            not over
            or not mean
            or not isinstance(each.value, ast.Call)
            or not isinstance(each.value.func, ast.Attribute)
        ):
            return False
        if each.value.func.attr != "item" or not _is_mean_loss(script, each.value.func.value, loops[0]):
            return False
    return bool(added)


def _is_mean_loss(script: Script, node: ast.expr, loop: ast.AST) -> bool:
    """Whether the name is given by a loss function of torch with its default reduction."""
    for each in script.walk(loop):
        if isinstance(each, ast.Assign) and dotted_name(node) in _targets(each) and isinstance(each.value, ast.Call):
            function = each.value.func
            name = script.name(function)
            if name.startswith("torch.nn.functional."):
                return argument(each.value, "reduction") is None
            made = [
                other.value
                for other in script.of_type(ast.Assign)
                if isinstance(other, ast.Assign) and dotted_name(function) in _targets(other)
            ]
            is_loss = [
                script.name(call).startswith("torch.nn.") and script.name(call).endswith("Loss") for call in made
            ]
            calls = [call for call in made if isinstance(call, ast.Call)]
            return bool(made) and all(is_loss) and all(argument(call, "reduction") is None for call in calls)
    return False


RULES = [GRAPH_KEPT, MEAN_OF_MEANS]
