"""SST5: how a distributed program is started."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from samestep.lint.findings import Edit, Finding, GuardMain, ReplaceExpression, ReplaceStatement
from samestep.lint.python.environment import settings
from samestep.lint.python.script import FunctionNode, Script, argument
from samestep.lint.registry import Rule, prose, source

FIXED_PORT = Rule(
    code="SST506",
    name="fixed-port",
    severity="warning",
    summary="The port for the rendezvous is fixed in the source.",
    why=prose("""
        A second run on the machine ends with `address already in use`, and so does the next one while the first's port
        is still closing (pytorch#126510). Under torchrun the assignment overwrites the port that it chose, and the
        ranks wait for a server that is not there. Ignite (2222) and Catalyst (2112) fail in the same way."""),
    wrong=source("""
        import os
        import torch.distributed as dist


        def setup(rank, world_size):
            os.environ["MASTER_ADDR"] = "localhost"
            os.environ["MASTER_PORT"] = "12355"
            dist.init_process_group("gloo", rank=rank, world_size=world_size)
        """),
    right=source("""
        import os
        import torch.distributed as dist


        def setup(rank, world_size):
            os.environ.setdefault("MASTER_ADDR", "localhost")
            os.environ.setdefault("MASTER_PORT", "12355")
            dist.init_process_group("gloo", rank=rank, world_size=world_size)
        """),
    mend="Start with torchrun or `samestep run`, which choose a free port; or leave it to the caller: `setdefault`.",
    fixed=source("""
        import os
        import torch.distributed as dist


        def setup(rank, world_size):
            os.environ["MASTER_ADDR"] = "localhost"
            os.environ.setdefault("MASTER_PORT", "12355")
            dist.init_process_group("gloo", rank=rank, world_size=world_size)
        """),
)


@FIXED_PORT.python
def _fixed_port(script: Script) -> Iterator[Finding]:
    for each in settings(script):
        value = script.value(each.value)
        if (
            each.name == "MASTER_PORT"
            and each.own
            and not each.default
            and value.text
            and value.text.isdigit()
            and value.text != "0"
        ):
            if _asks_first(script, each.node):
                continue
            fix: tuple[Edit, ...] = ()
            if isinstance(each.node, ast.Assign) and len(each.node.targets) == 1:
                target = each.node.targets[0]
                assert isinstance(target, ast.Subscript)
                arguments = f"{script.source(target.slice)}, {script.source(each.value)}"
                line = f"{script.source(target.value)}.setdefault({arguments})"
                fix = (ReplaceStatement(script.span(each.node), line),)
            yield FIXED_PORT.at(script, each.node, f"port {value.text} is fixed: two runs on a machine collide", *fix)
    for call in script.calls("torch.distributed.init_process_group"):
        method = script.value(argument(call, "init_method", 1)).text or ""
        address, _, port = method.rpartition(":")
        if address.startswith("tcp://") and port.isdigit() and int(port):
            yield FIXED_PORT.at(script, call, f"port {port} is fixed: two runs on a machine collide")


def _asks_first(script: Script, node: ast.AST) -> bool:
    """Whether it is set only where it is not set yet."""
    for test in script.inside(node, ast.If):
        if isinstance(test, ast.If) and "MASTER_PORT" in {
            n.value for n in ast.walk(test.test) if isinstance(n, ast.Constant)
        }:
            return True
    return False


NO_GUARD = Rule(
    code="SST511",
    name="spawn-without-main-guard",
    severity="error",
    summary='Processes are spawned at the top of the file, outside `if __name__ == "__main__":`.',
    why=prose("""
        A spawned process imports the file again, comes to the same line, and would spawn in turn: Python stops it with
        `An attempt has been made to start a new process before the current process has finished its bootstrapping
        phase`."""),
    wrong=source("""
        import torch.multiprocessing as mp


        def work(rank):
            print(rank)


        mp.spawn(work, nprocs=2)
        """),
    right=source("""
        import torch.multiprocessing as mp


        def work(rank):
            print(rank)


        if __name__ == "__main__":
            mp.spawn(work, nprocs=2)
        """),
    mend='Put what starts the program under `if __name__ == "__main__":`.',
    fixed=source("""
        import torch.multiprocessing as mp


        def work(rank):
            print(rank)


        if __name__ == "__main__":
            mp.spawn(work, nprocs=2)
        """),
)


@NO_GUARD.python
def _no_guard(script: Script) -> Iterator[Finding]:
    spawners = set()
    for call in script.calls("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"):
        function = script.function(call)
        method = script.value(argument(call, "start_method")).text
        if method == "fork":
            continue
        if function is script.tree and _at_top(script, call):
            statement = script.statement(call)
            alone = isinstance(statement, ast.Expr) and statement.value is call
            fix = (GuardMain(script.span(statement)),) if alone and script.parents.get(statement) is script.tree else ()
            yield NO_GUARD.at(script, call, "each spawned process would spawn again: RuntimeError", *fix)
        elif isinstance(function, FunctionNode) and script.parents.get(function) is script.tree:
            spawners.add(function.name)
    for call in script.calls():
        statement = script.statement(call)
        alone = (
            isinstance(statement, ast.Expr) and statement.value is call and script.parents.get(statement) is script.tree
        )
        if isinstance(call.func, ast.Name) and call.func.id in spawners and alone:
            message = f"{call.func.id}() spawns processes, and each would spawn again: RuntimeError"
            yield NO_GUARD.at(script, call, message, GuardMain(script.span(statement)))


def _at_top(script: Script, node: ast.AST) -> bool:
    """Whether importing the file reaches the node: no `if` and no function is around it."""
    return not any(
        isinstance(each, ast.If | ast.FunctionDef | ast.ClassDef | ast.Try) for each in script.ancestors(node)
    )


LOCAL_RANK = Rule(
    code="SST512",
    name="local-rank-argument",
    severity="warning",
    summary="The script waits for `--local_rank`, which today's launchers do not pass.",
    why=prose("""
        torchrun passes no argument: the rank is in LOCAL_RANK, and `args.local_rank` keeps its default on every rank,
        so that all work on one GPU. `torch.distributed.launch` passes `--local-rank` since torch 2.0, which argparse
        refuses."""),
    wrong=source("""
        import argparse
        import torch

        parser = argparse.ArgumentParser()
        parser.add_argument("--local_rank", type=int, default=0)
        torch.cuda.set_device(parser.parse_args().local_rank)
        """),
    right=source("""
        import argparse
        import os
        import torch

        parser = argparse.ArgumentParser()
        parser.add_argument("--local-rank", "--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(parser.parse_args().local_rank)
        """),
    mend='Read `int(os.environ["LOCAL_RANK"])`; accept both spellings where old launchers must work.',
    fixed=source("""
        import argparse
        import torch

        parser = argparse.ArgumentParser()
        parser.add_argument("--local-rank", "--local_rank", type=int, default=0)
        torch.cuda.set_device(parser.parse_args().local_rank)
        """),
)


@LOCAL_RANK.python
def _local_rank(script: Script) -> Iterator[Finding]:
    if any(isinstance(n, ast.Constant) and n.value == "LOCAL_RANK" for n in script.of_type(ast.Constant)):
        return
    uses = [
        node.ctx
        for node in script.of_type(ast.Attribute)
        if isinstance(node, ast.Attribute) and node.attr == "local_rank"
    ]
    if not uses and not script.mentions("distributed") and not script.mentions("init_dist"):
        return
    if not all(isinstance(context, ast.Load) for context in uses):  # given by the script's own launcher
        return
    for call in script.method_calls("add_argument"):
        names = [script.value(each).text for each in call.args]
        if "--local_rank" in names and "--local-rank" not in names:
            literal = call.args[names.index("--local_rank")]
            fix: tuple[Edit, ...] = ()
            if isinstance(literal, ast.Constant) and len(names) == 1:
                written = script.source(literal)
                fix = (ReplaceExpression(script.span(literal), f"{written.replace('_', '-')}, {written}"),)
            yield LOCAL_RANK.at(
                script, call, "torchrun passes no --local_rank, and torch.distributed.launch --local-rank", *fix
            )


RULES = [FIXED_PORT, NO_GUARD, LOCAL_RANK]
