"""SST3: what `backward()` is called on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from samestep.lint.findings import Edit, Finding, InsertStatement, ReplaceExpression
from samestep.lint.python.script import Script, argument, identifiers
from samestep.lint.registry import Rule, prose, source

VECTOR = Rule(
    code="SST302",
    name="backward-of-several-losses",
    severity="error",
    summary="The loss comes out of a DataParallel module as one number per GPU, and `backward()` wants one.",
    why=prose("""
        DataParallel gathers what `forward` returns: a scalar loss becomes a vector with one entry per GPU. On one GPU
        the script works; on two, `backward()` raises `grad can be implicitly created only for scalar outputs`
        (pytorch#7956)."""),
    wrong=source("""
        import torch


        def train(model, images, labels):
            model = torch.nn.DataParallel(model)
            loss = model(images, labels)
            loss.backward()
        """),
    right=source("""
        import torch


        def train(model, images, labels):
            model = torch.nn.DataParallel(model)
            loss = model(images, labels).mean()
            loss.backward()
        """),
    mend="Take the mean of the losses: `loss = loss.mean()`, at once, so that `loss.item()` works as well.",
    fixed=source("""
        import torch


        def train(model, images, labels):
            model = torch.nn.DataParallel(model)
            loss = model(images, labels)
            loss = loss.mean()
            loss.backward()
        """),
)


@VECTOR.python
def _vector(script: Script) -> Iterator[Finding]:
    for call in script.method_calls("backward"):
        assert isinstance(call.func, ast.Attribute)
        loss = call.func.value
        value = script.value(loss)
        if value.kind != "output" or not value.certain or call.args or value.call is None:
            continue
        called = value.call.func
        if isinstance(called, ast.Attribute) and script.value(called).kind not in ("data_parallel",):
            continue
        if script.value(called).kind == "data_parallel" and not _single_device(script, called):
            name = script.source(loss)
            yield VECTOR.at(
                script, call, f"{name} has one entry per GPU; take its mean first", *_mean(script, loss, call)
            )


def _mean(script: Script, loss: ast.expr, backward: ast.Call) -> tuple[Edit, ...]:
    if not isinstance(loss, ast.Name):
        return (ReplaceExpression(script.span(loss), f"{script.source(loss)}.mean()"),)
    assigned = [
        each
        for each in script.of_type(ast.Assign)
        if isinstance(each, ast.Assign)
        and script.function(each) is script.function(backward)
        and each.lineno < backward.lineno
        and any(isinstance(n, ast.Name) and n.id == loss.id for target in each.targets for n in ast.walk(target))
    ]
    if len(assigned) != 1:
        return ()
    return (InsertStatement(script.span(assigned[0]), f"{loss.id} = {loss.id}.mean()", "after"),)


def _single_device(script: Script, called: ast.AST) -> bool:
    made = script.value(called).call
    given = argument(made, "device_ids", 1) if made is not None else None
    if isinstance(given, ast.Name) and any(
        given.id in identifiers(loop.target) for loop in script.inside(given, ast.For) if isinstance(loop, ast.For)
    ):
        return True  # a loop over several choices, one device perhaps among them
    numbers = script.value(argument(made, "device_ids", 1)).numbers if made is not None else None
    return numbers is not None and len(numbers) == 1


NO_GRAPH = Rule(
    code="SST303",
    name="backward-without-graph",
    severity="error",
    summary="A loss is computed and differentiated inside `torch.no_grad()`.",
    why=prose("""
        Inside `no_grad` nothing is recorded, so `backward()` raises `element 0 of tensors does not require grad`.
        Under DDP it is worse than on one device: a rank that gets there alone leaves the others waiting in their
        all-reduce."""),
    wrong=source("""
        import torch


        def evaluate(model, images, labels):
            with torch.no_grad():
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                loss.backward()
        """),
    right=source("""
        import torch


        def train(model, images, labels):
            with torch.no_grad():
                labels = labels * 2
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
        """),
    mend="Move `backward()` and what computes the loss out of the `no_grad` block.",
)


@NO_GRAPH.python
def _no_graph(script: Script) -> Iterator[Finding]:
    for call in script.method_calls("backward"):
        assert isinstance(call.func, ast.Attribute)
        block = _no_grad_block(script, call)
        if block is None or not isinstance(call.func.value, ast.Name):
            continue
        name = call.func.value.id
        made = [
            each
            for each in script.walk(block)
            if isinstance(each, ast.Assign)
            and isinstance(each.value, ast.Call)
            and any(isinstance(target, ast.Name) and target.id == name for target in each.targets)
        ]
        if (
            made
            and "enable_grad" not in identifiers(block)
            and not {"set_grad_enabled", "requires_grad", "requires_grad_"} & identifiers(block)
        ):
            yield NO_GRAPH.at(script, call, f"{name} is computed inside no_grad and has no graph: backward() raises")


def _no_grad_block(script: Script, node: ast.AST) -> ast.AST | None:
    for block in script.inside(node, ast.With):
        assert isinstance(block, ast.With)
        for item in block.items:
            if isinstance(item.context_expr, ast.Call):
                name = script.name(item.context_expr)
                if name in ("torch.no_grad", "torch.inference_mode") and not item.context_expr.args:
                    return block
    return None


RULES = [VECTOR, NO_GRAPH]
