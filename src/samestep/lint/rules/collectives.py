"""SST5: collectives, and who takes part in them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from samestep.lint.findings import Edit, Finding, ReplaceExpression, ReplaceStatement
from samestep.lint.python.names import dotted_name
from samestep.lint.python.reach import picks_ranks, returns_before, speaks_of_ranks, tests_around
from samestep.lint.python.script import Script, argument, identifiers
from samestep.lint.registry import Rule, prose, source

_COLLECTIVES = {
    f"torch.distributed.{name}"
    for name in (
        *("all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "barrier", "monitored_barrier"),
        *("reduce_scatter", "all_to_all", "all_to_all_single", "all_gather_into_tensor", "reduce_scatter_tensor"),
        *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    )
}

SOME_RANKS = Rule(
    code="SST501",
    name="collective-on-some-ranks",
    severity="error",
    summary="A collective is called on some ranks only; the others never come, and the program hangs.",
    why=prose("""
        all_reduce, barrier, broadcast and their like wait for every rank of the group. Under `if rank == 0:` rank 0
        waits for ranks that do something else: NCCL's watchdog ends the run after 10 minutes, other backends after 30.
        One such deadlock cost 4 h 34 min of a cluster (marin#8538)."""),
    wrong=source("""
        import torch.distributed as dist


        def report(loss, rank):
            if rank == 0:
                dist.all_reduce(loss)
                print(loss / dist.get_world_size())
        """),
    right=source("""
        import torch.distributed as dist


        def report(loss, rank):
            dist.all_reduce(loss)
            if rank == 0:
                print(loss / dist.get_world_size())
        """),
    mend="Call the collective on every rank, and put only the printing or saving under the test.",
)


@SOME_RANKS.python
def _some_ranks(script: Script) -> Iterator[Finding]:
    for call in script.calls(*_COLLECTIVES):
        group = argument(call, "group")
        if group is not None or any("group" in word for word in identifiers(call)):
            continue
        for test, in_body in tests_around(script, call):
            if picks_ranks(test.test) and not _has_partner(script, call, test, in_body):
                where = f"`if {script.source(test.test)}` in line {test.lineno}"
                name = script.name(call).rpartition(".")[2]
                yield SOME_RANKS.at(script, call, f"{name} waits for every rank, but only some reach it ({where})")
                break
        else:
            for test in returns_before(script, call):
                if (
                    picks_ranks(test.test)
                    and isinstance(test.body[-1], ast.Return)
                    and not _calls_any(script, test, call)
                ):
                    name = script.name(call).rpartition(".")[2]
                    message = f"{name} waits for every rank, but some return in line {test.body[-1].lineno}"
                    yield SOME_RANKS.at(script, call, message)
                    break


def _has_partner(script: Script, call: ast.Call, test: ast.If | ast.IfExp, in_body: bool) -> bool:
    """Whether other ranks call the same collective elsewhere: in the else, or under another test of the rank."""
    function = script.function(call)
    for other in script.calls():
        if other is call or script.function(other) is not function or not _alike(script, other, call):
            continue
        around = [(each, side) for each, side in tests_around(script, other) if speaks_of_ranks(each.test)]
        mine = [(each, side) for each, side in tests_around(script, call) if speaks_of_ranks(each.test)]
        if around and around != mine:
            return True
    if isinstance(test, ast.If):  # the other branch leaves, or calls something that may take part
        branch = test.orelse if in_body else test.body
        if any(
            isinstance(each, ast.Call) and _may_communicate(script, each) for part in branch for each in ast.walk(part)
        ):
            return True
        ends = test.body if in_body else test.orelse
        if ends and isinstance(
            ends[-1], ast.Return | ast.Raise
        ):  # `if rank == 0: …; barrier(); return` and the same below
            return any(_alike(script, each, call) and each.lineno > call.lineno for each in script.calls())
    return False


def _alike(script: Script, one: ast.Call, other: ast.Call) -> bool:
    """The same collective, under whatever alias; or functions that may hold it."""
    return script.name(one) == script.name(other)


def _may_communicate(script: Script, call: ast.Call) -> bool:
    name = script.name(call) or dotted_name(call.func)
    if name in _COLLECTIVES:
        return True
    last = name.rpartition(".")[2].lower()
    for function in script.of_type(ast.FunctionDef, ast.AsyncFunctionDef):
        if getattr(function, "name", "").lower() == last and any(
            script.name(each) in _COLLECTIVES for each in ast.walk(function) if isinstance(each, ast.Call)
        ):
            return True
    return any(
        word in last
        for word in ("barrier", "sync", "reduce", "gather", "broadcast", "wait", "scatter", "recv", "send", "receive")
    )


def _calls_any(script: Script, test: ast.If, call: ast.Call) -> bool:
    return any(
        isinstance(each, ast.Call) and _may_communicate(script, each) for part in test.body for each in ast.walk(part)
    )


MODEL_ON_SOME = Rule(
    code="SST502",
    name="wrapped-model-on-some-ranks",
    severity="error",
    summary="A DistributedDataParallel model is called on some ranks only.",
    why=prose("""
        The wrapper communicates: it broadcasts the buffers (batch norm's statistics) before a forward, and all-reduces
        the gradients in a backward. An evaluation under `if rank == 0:` through the wrapper waits for the other ranks,
        or takes the place of their next collective."""),
    wrong=source("""
        import torch
        from torch.nn.parallel import DistributedDataParallel


        def main(model, images, rank):
            model = DistributedDataParallel(model)
            if rank == 0:
                with torch.no_grad():
                    print(model(images).argmax(1))
        """),
    right=source("""
        import torch
        from torch.nn.parallel import DistributedDataParallel


        def main(model, images, rank):
            model = DistributedDataParallel(model)
            if rank == 0:
                with torch.no_grad():
                    print(model.module(images).argmax(1))
        """),
    mend="On one rank call the model itself, `model.module(images)`, without backward.",
    fixed=source("""
        import torch
        from torch.nn.parallel import DistributedDataParallel


        def main(model, images, rank):
            model = DistributedDataParallel(model)
            if rank == 0:
                with torch.no_grad():
                    print(model.module(images).argmax(1))
        """),
)


@MODEL_ON_SOME.python
def _model_on_some(script: Script) -> Iterator[Finding]:
    for call in script.calls():
        if script.value(call).kind != "output" or script.value(call.func).kind not in ("ddp", "fsdp"):
            continue
        if not script.value(call.func).certain:
            continue
        for test, in_body in tests_around(script, call):
            if not picks_ranks(test.test):
                continue
            branch = (test.orelse if in_body else test.body) if isinstance(test, ast.If) else []
            if any(
                isinstance(each, ast.Call) and script.value(each).kind == "output"
                for part in branch
                for each in ast.walk(part)
            ):
                continue
            is_ddp = script.value(call.func).kind == "ddp"
            fix: tuple[Edit, ...] = ()
            if is_ddp and _without_gradient(script, call) and not script.value(call.func).assumed:
                fix = (ReplaceExpression(script.span(call.func), f"{script.source(call.func)}.module"),)
            where = f"`if {script.source(test.test)}` in line {test.lineno}"
            yield MODEL_ON_SOME.at(
                script, call, f"the wrapper communicates, but only some ranks reach it ({where})", *fix
            )
            break


def _without_gradient(script: Script, node: ast.AST) -> bool:
    blocks = [each for each in script.inside(node, ast.With) if isinstance(each, ast.With)]
    names = [script.name(item.context_expr) for block in blocks for item in block.items]
    return bool({"torch.no_grad", "torch.inference_mode"} & set(names))


RESULT_USED = Rule(
    code="SST505",
    name="collective-result-used",
    severity="error",
    summary="The result of an in-place collective is assigned; it is None.",
    why=prose("""
        `dist.all_reduce(loss)` changes `loss` itself and returns None (a handle, with `async_op=True`). After `loss =
        dist.all_reduce(loss)` the loss is gone; the line behind it raises, or, where only rank 0 looks at it, the
        other ranks hang."""),
    wrong=source("""
        import torch.distributed as dist


        def average(loss):
            loss = dist.all_reduce(loss)
            return loss / dist.get_world_size()
        """),
    right=source("""
        import torch.distributed as dist


        def average(loss):
            dist.all_reduce(loss)
            handle = dist.all_reduce(loss, async_op=True)
            handle.wait()
            return loss / dist.get_world_size()
        """),
    mend="Call it as a statement, and use the tensor that was given to it.",
    fixed=source("""
        import torch.distributed as dist


        def average(loss):
            dist.all_reduce(loss)
            return loss / dist.get_world_size()
        """),
)
_IN_PLACE = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "barrier",
    "scatter",
    "gather",
    "reduce_scatter",
    "all_gather_object",
)


@RESULT_USED.python
def _result_used(script: Script) -> Iterator[Finding]:
    for call in script.calls(*[f"torch.distributed.{name}" for name in _IN_PLACE]):
        parent = script.parents.get(call)
        if any(keyword.arg in ("async_op", None) for keyword in call.keywords) or len(call.args) > 3:
            continue
        name = script.name(call).rpartition(".")[2]
        if isinstance(parent, ast.Assign):
            fix: tuple[Edit, ...] = ()
            target = dotted_name(parent.targets[0])
            if target and call.args and target == dotted_name(call.args[0]) and len(parent.targets) == 1:
                fix = (ReplaceStatement(script.span(parent), script.source(call)),)
            if target != "_":
                yield RESULT_USED.at(script, call, f"{name} works in place and returns None", *fix)
        elif isinstance(parent, ast.BinOp | ast.Attribute):
            yield RESULT_USED.at(script, call, f"{name} works in place and returns None")


RULES = [SOME_RANKS, MODEL_ON_SOME, RESULT_USED]
