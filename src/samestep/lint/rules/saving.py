"""SST4: what is saved: wrappers, and by whom."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from samestep.lint.findings import Finding, ReplaceExpression
from samestep.lint.python.names import dotted_name
from samestep.lint.python.reach import knows_ranks
from samestep.lint.python.script import FunctionNode, Script, argument, identifiers
from samestep.lint.registry import Rule, prose, source

_WRAPPERS = ("torch.nn.DataParallel", "torch.nn.parallel.DistributedDataParallel")

PREFIX_MISMATCH = Rule(
    code="SST401",
    name="saved-wrapped-loaded-plain",
    severity="error",
    summary="A checkpoint is saved from the wrapped model, and loaded into the model before it is wrapped.",
    why=prose("""
        The keys of a DataParallel or DistributedDataParallel `state_dict` begin with `module.`; those of the model do
        not. Resuming ends with `Missing key(s) in state_dict`, or, with `strict=False`, loads nothing at all and says
        nothing (pytorch#3805)."""),
    wrong=source("""
        import torch


        def train(model, path):
            model.load_state_dict(torch.load(path, map_location="cpu"))
            model = torch.nn.DataParallel(model)
            torch.save(model.state_dict(), path)
        """),
    right=source("""
        import torch


        def train(model, path):
            model.load_state_dict(torch.load(path, map_location="cpu"))
            model = torch.nn.DataParallel(model)
            torch.save(model.module.state_dict(), path)
        """),
    mend="Save `model.module.state_dict()`, which loads anywhere.",
    fixed=source("""
        import torch


        def train(model, path):
            model.load_state_dict(torch.load(path, map_location="cpu"))
            model = torch.nn.DataParallel(model)
            torch.save(model.module.state_dict(), path)
        """),
)
WRAPPER_SAVED = Rule(
    code="SST402",
    name="wrapper-state-saved",
    severity="warning",
    summary="The `state_dict` of a wrapper is saved: its keys begin with `module.`.",
    why=prose("""
        Such a checkpoint loads only into a model wrapped in the same way: not on one device, not for inference, not
        into another framework (pytorch#3805). Of 68 repositories read, 12 save `.module` for this reason."""),
    wrong=source("""
        import torch


        def train(model, path):
            model = torch.nn.DataParallel(model)
            torch.save({"model": model.state_dict()}, path)
        """),
    right=source("""
        import torch


        def train(model, path):
            model = torch.nn.DataParallel(model)
            torch.save({"model": model.module.state_dict()}, path)
        """),
    mend="Save `model.module.state_dict()`; where checkpoints of the old form exist, strip the prefix when loading.",
)


@PREFIX_MISMATCH.python
def _prefix_mismatch(script: Script) -> Iterator[Finding]:
    for call in _wrapped_states(script):
        assert isinstance(call.func, ast.Attribute)
        if _loads_plain(script, call) and not _loads_wrapped(script):
            wrapped = script.source(call.func.value)
            message = f"saved with the prefix 'module.', but loaded into {wrapped} before it is wrapped"
            assumed = script.value(call.func.value).assumed
            fix = (ReplaceExpression(script.span(call.func.value), f"{wrapped}.module"),) if not assumed else ()
            yield PREFIX_MISMATCH.at(script, call, message, *fix)


@WRAPPER_SAVED.python
def _wrapper_saved(script: Script) -> Iterator[Finding]:
    if _loads_wrapped(script):
        return
    for call in _wrapped_states(script):
        if not _loads_plain(script, call):
            yield WRAPPER_SAVED.at(
                script, call, "the keys will begin with 'module.': the file fits a wrapped model only"
            )


def _wrapped_states(script: Script) -> Iterator[ast.Call]:
    """The calls `model.state_dict()` inside torch.save(…) on what certainly is a DataParallel or DDP wrapper."""
    if script.mentions("module."):  # the file knows of the prefix
        return
    for call in script.method_calls("state_dict"):
        assert isinstance(call.func, ast.Attribute)
        value = script.value(call.func.value)
        if value.kind not in ("data_parallel", "ddp") or not value.certain:
            continue
        if any(isinstance(each, ast.Call) and script.name(each) == "torch.save" for each in script.ancestors(call)):
            test = [
                identifiers(each.test)
                for each in script.inside(call, ast.If, ast.IfExp)
                if isinstance(each, ast.If | ast.IfExp)
            ]
            if not any({"isinstance", "hasattr", "module"} & words for words in test):
                yield call


def _loads_plain(script: Script, save: ast.Call) -> bool:
    """Whether the same function loads into the same variable while it holds the model itself, and then wraps it."""
    assert isinstance(save.func, ast.Attribute)
    wrapped = script.value(save.func.value).call
    inner = dotted_name(argument(wrapped, "module", 0)) if wrapped is not None else ""
    for call in script.method_calls("load_state_dict"):
        assert isinstance(call.func, ast.Attribute)
        plain = script.value(call.func.value).kind not in ("data_parallel", "ddp")
        beside = script.function(call) is script.function(save)
        if inner and dotted_name(call.func.value) == inner and plain and beside:
            return wrapped is not None and call.lineno < wrapped.lineno
    return False


def _loads_wrapped(script: Script) -> bool:
    """Whether the file loads a state into a wrapper (or into one on some branches): its keys must have the prefix."""
    return any(
        isinstance(call.func, ast.Attribute) and script.value(call.func.value).kind in ("data_parallel", "ddp")
        for call in script.method_calls("load_state_dict")
    )


PICKLED = Rule(
    code="SST403",
    name="wrapper-pickled",
    severity="warning",
    summary="A wrapped model is pickled whole.",
    why=prose("""
        `torch.save(model)` of a wrapper stores its list of devices and the classes' import paths. It loads only where
        as many GPUs exist and the source lies in the same place; since torch 2.6 `torch.load` refuses it unless told
        `weights_only=False`. 9 of 68 repositories read do it."""),
    wrong=source("""
        import torch


        def finish(model, path):
            model = torch.nn.DataParallel(model)
            torch.save(model, path)
        """),
    right=source("""
        import torch


        def finish(model, path):
            model = torch.nn.DataParallel(model)
            torch.save(model.module.state_dict(), path)
        """),
    mend="Save `model.module.state_dict()`.",
)


@PICKLED.python
def _pickled(script: Script) -> Iterator[Finding]:
    for call in script.calls("torch.save"):
        given = argument(call, "obj", 0)
        values = [given] if not isinstance(given, ast.Dict) else list(given.values)
        for node in values:
            if node is not None and script.value(node).kind in ("data_parallel", "ddp") and script.value(node).certain:
                yield PICKLED.at(
                    script, node, "the wrapper is pickled with its devices; save .module.state_dict() instead"
                )


EVERY_RANK = Rule(
    code="SST405",
    name="every-rank-saves",
    severity="error",
    summary="Each rank of a distributed program writes the same checkpoint file.",
    why=prose("""
        N processes open one path at the same moment. On a local disk the file may be torn; on a shared one it often
        is, and it is noticed when the run must be resumed. Two unsynchronised copies of 19 scripts, started in one
        directory: one read the other's half-written file, one died of FileExistsError."""),
    wrong=source("""
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel


        def main(model, path):
            dist.init_process_group("nccl")
            model = DistributedDataParallel(model)
            torch.save(model.module.state_dict(), path)


        main(torch.nn.Linear(2, 2), "model.pt")
        """),
    right=source("""
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel


        def main(model, path):
            dist.init_process_group("nccl")
            model = DistributedDataParallel(model)
            if dist.get_rank() == 0:
                torch.save(model.module.state_dict(), path)


        main(torch.nn.Linear(2, 2), "model.pt")
        """),
    mend="Save under `if dist.get_rank() == 0:`, with a `dist.barrier()` after it where the others read the file.",
)


@EVERY_RANK.python
def _every_rank(script: Script) -> Iterator[Finding]:
    if not any(True for _ in script.calls(_WRAPPERS[1])) or not any(
        True for _ in script.calls("torch.distributed.init_process_group")
    ):
        return
    words = ("fullyshardeddataparallel", "fully_shard", "deepspeed")  # there every rank takes part in saving
    if any(script.mentions(word) or word in " ".join(script.names.modules).lower() for word in words):
        return
    for call in script.calls("torch.save"):
        path = argument(call, "f", 1)
        if path is None or _path_varies(script, path) or knows_ranks(script, call) or not _calls_reach(script, call):
            continue
        yield EVERY_RANK.at(script, call, "every rank writes this file; save on rank 0 only")


def _path_varies(script: Script, path: ast.expr) -> bool:
    words = identifiers(path)
    for each in script.of_type(ast.Assign):
        if isinstance(each, ast.Assign) and any(dotted_name(target) == dotted_name(path) for target in each.targets):
            words |= identifiers(each.value)
    return any("rank" in word or "buffer" in word or "bytesio" in word or "pid" in word for word in words)


def _calls_reach(script: Script, call: ast.Call) -> bool:
    """Whether the file itself wraps a model in the function, or runs it: it is the program, not a library."""
    function = script.function(call)
    if function is script.tree:
        return True
    return isinstance(function, FunctionNode) and not any(
        isinstance(parent, ast.ClassDef) for parent in script.ancestors(function)
    )


RULES = [PREFIX_MISMATCH, WRAPPER_SAVED, PICKLED, EVERY_RANK]
