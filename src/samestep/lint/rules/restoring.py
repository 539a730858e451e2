"""SST4: what is loaded, and where it goes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from samestep.lint.findings import Edit, Finding, SetArgument
from samestep.lint.python.names import dotted_name
from samestep.lint.python.script import Script, argument, is_open
from samestep.lint.registry import Rule, prose, source

NO_MAP = Rule(
    code="SST404",
    name="load-without-map-location",
    severity="warning",
    summary="A distributed program loads a checkpoint without `map_location`.",
    why=prose("""
        `torch.load` puts each tensor back on the device that it was saved from: cuda:0 for nearly every checkpoint.
        All N ranks then allocate the whole checkpoint on GPU 0, which runs out of memory at resume although training
        fitted (examples#969, pytorch#23138)."""),
    wrong=source("""
        import torch
        import torch.distributed as dist


        def resume(model, path):
            dist.init_process_group("nccl")
            checkpoint = torch.load(path)
            model.load_state_dict(checkpoint["model"])
        """),
    right=source("""
        import torch
        import torch.distributed as dist


        def resume(model, path):
            dist.init_process_group("nccl")
            checkpoint = torch.load(path, map_location="cpu")
            model.load_state_dict(checkpoint["model"])
        """),
    mend='Pass `map_location="cpu"`: `load_state_dict` copies the values to where the parameters are.',
    fixed=source("""
        import torch
        import torch.distributed as dist


        def resume(model, path):
            dist.init_process_group("nccl")
            checkpoint = torch.load(path, map_location="cpu")
            model.load_state_dict(checkpoint["model"])
        """),
)


@NO_MAP.python
def _no_map(script: Script) -> Iterator[Finding]:
    starts = ("torch.distributed.init_process_group", "torch.nn.parallel.DistributedDataParallel")
    if not any(True for _ in script.calls(*starts)):
        return
    for call in script.calls("torch.load"):
        if argument(call, "map_location", 1) is None and not is_open(call) and not _maps_elsewhere(script, call):
            uses = _uses(script, call)
            if uses and any(_is_loaded(script, use) for use in uses):
                certain = all(_is_loaded(script, use) or _is_read(script, use) for use in uses)
                fix: tuple[Edit, ...] = (SetArgument(script.span(call), "map_location", '"cpu"'),) if certain else ()
                message = "each rank puts the tensors on the GPU that they were saved from, usually cuda:0"
                yield NO_MAP.at(script, call, message, *fix)


def _maps_elsewhere(script: Script, call: ast.Call) -> bool:
    """Whether the same function loads with `map_location` on another path: the author has thought of it."""
    return any(
        other is not call and argument(other, "map_location", 1) is not None
        for other in script.calls("torch.load")
        if script.function(other) is script.function(call)
    )


def _uses(script: Script, call: ast.Call) -> list[ast.AST]:
    """Where what is loaded is used in the same function: the call itself, or the names it is given to."""
    statement = script.statement(call)
    if not isinstance(statement, ast.Assign) or statement.value is not call:
        return [call]
    names = {dotted_name(target) for target in statement.targets}
    function = script.function(call)
    return [
        node
        for node in script.walk(function)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load) and dotted_name(node) in names
    ]


def _is_loaded(script: Script, node: ast.AST) -> bool:
    """Whether the value, or an entry of it, is given to load_state_dict."""
    parent = script.parents.get(node)
    while isinstance(parent, ast.Subscript) and parent.value is node:
        node, parent = parent, script.parents.get(parent)
    if not isinstance(parent, ast.Call) or not isinstance(parent.func, ast.Attribute):
        return False
    receiver = dotted_name(parent.func.value).lower()
    if "scaler" in receiver or "sched" in receiver:  # their states are numbers
        return False
    return node in parent.args and parent.func.attr == "load_state_dict"


def _is_read(script: Script, node: ast.AST) -> bool:
    """Whether only an entry that is a number by its name is read: `checkpoint["epoch"]`."""
    parent = script.parents.get(node)
    if isinstance(parent, ast.Compare):
        return True
    words = ("epoch", "step", "iteration", "iter", "args", "config", "best_acc", "best_acc1", "best")
    return isinstance(parent, ast.Subscript) and parent.value is node and script.value(parent.slice).text in words


STATE_BEFORE_MOVE = Rule(
    code="SST406",
    name="optimizer-state-before-move",
    severity="error",
    summary="The optimizer's state is loaded before the model is moved to its device.",
    why=prose("""
        `optimizer.load_state_dict` puts the state where the parameters are at that moment: on the CPU. When the model
        moves afterwards, its parameters move and the state does not; the first step after resuming ends with `Expected
        all tensors to be on the same device`."""),
    wrong=source("""
        import torch


        def resume(model, checkpoint):
            optimizer = torch.optim.Adam(model.parameters())
            optimizer.load_state_dict(checkpoint["optimizer"])
            model.cuda()
        """),
    right=source("""
        import torch


        def resume(model, checkpoint):
            model.cuda()
            optimizer = torch.optim.Adam(model.parameters())
            optimizer.load_state_dict(checkpoint["optimizer"])
        """),
    mend="Move the model first; make the optimizer and load its state afterwards.",
)


@STATE_BEFORE_MOVE.python
def _state_before_move(script: Script) -> Iterator[Finding]:
    for load in script.method_calls("load_state_dict"):
        assert isinstance(load.func, ast.Attribute)
        optimizer = script.value(load.func.value)
        if optimizer.kind != "optimizer" or optimizer.call is None or not optimizer.certain:
            continue
        made = optimizer.call
        model = _model_of(made)
        moved_before = _is_somewhere(script, made, model, load)
        for move in _moves(script, model, made):
            straight = script.parents.get(script.statement(move)) is script.function(move)
            if model and move.lineno > load.lineno and straight and not moved_before and not _moves_state(script, load):
                message = f"the state stays on the CPU when {model} is moved in line {move.lineno}"
                yield STATE_BEFORE_MOVE.at(script, load, message)
                break


def _model_of(made: ast.Call) -> str:
    given = made.args[0] if made.args else None
    if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and given.func.attr == "parameters":
        return dotted_name(given.func.value)
    return ""


def _moves(script: Script, model: str, made: ast.Call) -> list[ast.Call]:
    """The moves of the model to a GPU in the function that makes the optimizer."""
    return [
        call
        for call in script.method_calls("cuda", "to")
        if isinstance(call.func, ast.Attribute)
        and dotted_name(call.func.value) == model
        and script.function(call) is script.function(made)
        and script.value(call).location.startswith("cuda")
    ]


def _is_somewhere(script: Script, made: ast.Call, model: str, load: ast.Call) -> bool:
    """Whether the model was moved, or may have been, before the state is loaded."""
    for node in ast.walk(made):
        if dotted_name(node) == model and script.value(node).location:
            return True
    return any(
        isinstance(call.func, ast.Attribute) and dotted_name(call.func.value) == model and call.lineno < load.lineno
        for call in script.method_calls("cuda", "to")
    )


def _moves_state(script: Script, load: ast.Call) -> bool:
    """Whether the file moves the state itself (`for state in optimizer.state.values(): …`)."""
    assert isinstance(load.func, ast.Attribute)
    owner = dotted_name(load.func.value)
    return any(dotted_name(node) == f"{owner}.state" for node in script.of_type(ast.Attribute))


RULES = [NO_MAP, STATE_BEFORE_MOVE]
