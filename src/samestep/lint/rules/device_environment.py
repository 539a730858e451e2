"""SST1: when and where the variables that choose the devices are set."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from samestep.lint.device_lists import (
    VARIABLES,
    VISIBLE,
    indices,
)
from samestep.lint.findings import Edit, Finding, InsertStatement, ReplaceStatement
from samestep.lint.python.environment import Setting, settings
from samestep.lint.python.script import Script, argument
from samestep.lint.python.values import device_of
from samestep.lint.registry import Rule, prose, source
from samestep.lint.rules.device_names import DEVICE_ARGUMENT
from samestep.lint.shell.script import ShellScript

TOO_LATE = Rule(
    code="SST104",
    name="visible-devices-too-late",
    severity="error",
    summary="The devices are chosen after CUDA was initialised, which has no effect.",
    why=prose("""
        The CUDA driver reads CUDA_VISIBLE_DEVICES once, when it is initialised: by the first `.cuda()`, the first
        tensor on a GPU, and already by `torch.cuda.is_available()`. A value set later is ignored without a word: the
        program runs on GPU 0, on top of whoever is there."""),
    wrong=source("""
        import os
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        os.environ["CUDA_VISIBLE_DEVICES"] = "2"
        """),
    right=source("""
        import os

        os.environ["CUDA_VISIBLE_DEVICES"] = "2"
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        """),
    mend="Set the variable before torch is used, best before it is imported, or on the command line.",
)

_INITIALISES = {
    f"torch.cuda.{name}"
    for name in (
        *("is_available", "init", "set_device", "current_device", "get_device_name", "get_device_properties"),
        *("get_device_capability", "synchronize", "current_stream", "Stream", "Event", "mem_get_info"),
        *("is_bf16_supported", "get_rng_state"),
    )
}


@TOO_LATE.python
def _too_late(script: Script) -> Iterator[Finding]:
    chosen = [each for each in settings(script) if each.own and each.name in (*VISIBLE, "CUDA_DEVICE_ORDER")]
    if not chosen or _starts_children(script):
        return
    first: dict[ast.AST, ast.Call] = {}
    for call in script.calls():
        if _initialises(script, call):
            first.setdefault(script.function(call), call)
    for each in chosen:
        scope = script.function(each.node)
        before = [call for call in (first.get(scope), _module_first(script, first, scope)) if call is not None]
        for call in before:
            if _precedes(script, call, each.node) and not _set_earlier(script, chosen, each, call):
                what = f"{script.source(call.func)}() in line {call.lineno}"
                yield TOO_LATE.at(
                    script, each.node, f"{each.name} is set after {what} initialised CUDA: it has no effect"
                )
                break


def _starts_children(script: Script) -> bool:
    """Whether the file starts other processes: they inherit what is set, so that it does have an effect."""
    starts = ("subprocess.", "multiprocessing.", "torch.multiprocessing.", "concurrent.futures.", "os.exec", "os.spawn")
    return any(script.name(call).startswith((*starts, "os.system", "os.popen", "ray.")) for call in script.calls())


def _initialises(script: Script, call: ast.Call) -> bool:
    if script.name(call) in _INITIALISES:
        return True
    if script.name(call) in DEVICE_ARGUMENT and device_of(script.value(argument(call, "device"))).startswith("cuda"):
        return True
    value = script.value(call)
    moved = isinstance(call.func, ast.Attribute) and call.func.attr in ("cuda", "to")
    return moved and value.location.startswith("cuda")


def _module_first(script: Script, first: dict[ast.AST, ast.Call], scope: ast.AST) -> ast.Call | None:
    """CUDA's first use at module level, if the function cannot have run before it: it is called further down only."""
    if scope is script.tree or script.tree not in first or not isinstance(scope, ast.FunctionDef):
        return None
    call = first[script.tree]
    uses = [node for node in script.of_type(ast.Name) if isinstance(node, ast.Name) and node.id == scope.name]
    return call if uses and all(use.lineno > call.lineno for use in uses) and call.lineno < scope.lineno else None


def _precedes(script: Script, call: ast.Call, node: ast.AST) -> bool:
    """Whether the call is run before the node whenever the node is: it is on the way, not in a branch of its own."""
    statement, target = script.statement(call), script.statement(node)
    if (call.lineno, call.col_offset) >= (target.lineno, target.col_offset) or statement is target:
        return False
    around = set(script.ancestors(target))
    for parent in script.ancestors(statement):
        if isinstance(parent, ast.If | ast.For | ast.While | ast.Try | ast.With | ast.ExceptHandler):
            if parent in around:
                # Both are in it: one in the body and one in the else never run together.
                return not (isinstance(parent, ast.If) and _side(script, parent, call) != _side(script, parent, node))
            if isinstance(parent, ast.If) and call in ast.walk(parent.test):
                continue
            if not isinstance(parent, ast.With):
                return False
    return True


def _side(script: Script, parent: ast.If, node: ast.AST) -> str:
    around = [node, *script.ancestors(node)]
    return (
        "body"
        if any(each in parent.body for each in around)
        else "else"
        if any(each in parent.orelse for each in around)
        else "test"
    )


def _set_earlier(script: Script, chosen: list[Setting], late: Setting, call: ast.Call) -> bool:
    """Whether an earlier setting of the same variable made the choice in time (the later one is for children)."""
    return any(each is not late and each.name == late.name and each.node.lineno < call.lineno for each in chosen)


HIP_AND_ROCR = Rule(
    code="SST110",
    name="hip-behind-rocr",
    severity="error",
    summary="HIP_VISIBLE_DEVICES names a device that ROCR_VISIBLE_DEVICES has taken away or renumbered.",
    why=prose("""
        On ROCm both variables count, one after the other: ROCR_VISIBLE_DEVICES restricts and renumbers, then
        HIP_VISIBLE_DEVICES chooses among what is left, from 0. With both at `2,3` nothing is left, and torch finds no
        GPU (pytorch#140318)."""),
    wrong=source("""
        import os

        os.environ["ROCR_VISIBLE_DEVICES"] = "2,3"
        os.environ["HIP_VISIBLE_DEVICES"] = "2,3"
        """),
    right=source("""
        import os

        os.environ["ROCR_VISIBLE_DEVICES"] = "2,3"
        os.environ["HIP_VISIBLE_DEVICES"] = "0,1"
        """),
    mend="Set one of them only, or number HIP_VISIBLE_DEVICES from 0 within what ROCR_VISIBLE_DEVICES leaves.",
)


@HIP_AND_ROCR.python
def _hip_behind_rocr(script: Script) -> Iterator[Finding]:
    found: dict[str, list[Setting]] = {}
    for each in settings(script):
        found.setdefault(each.name, []).append(each)
    rocr = found.get("ROCR_VISIBLE_DEVICES", [])
    if len(rocr) == 1:
        for each in found.get("HIP_VISIBLE_DEVICES", []):
            message = _beyond(script.value(rocr[0].value).text, script.value(each.value).text)
            if message:
                yield HIP_AND_ROCR.at(script, each.value, message)


@HIP_AND_ROCR.shell
def _hip_behind_rocr_in_shell(script: ShellScript) -> Iterator[Finding]:
    rocr = [each for each in script.assignments if each.name == "ROCR_VISIBLE_DEVICES"]
    for each in script.assignments:
        if each.name == "HIP_VISIBLE_DEVICES" and len(rocr) == 1 and (rocr[0].alone or rocr[0].command is each.command):
            message = _beyond(rocr[0].value, each.value)
            if message:
                yield HIP_AND_ROCR.here(script.path, script.word_span(each.word), message)


def _beyond(rocr: str | None, hip: str | None) -> str | None:
    left, chosen = indices(rocr or ""), indices(hip or "")
    if left is None or chosen is None or max(chosen) < len(left):
        return None
    one = "1 device" if len(left) == 1 else f"{len(left)} devices"
    return f"ROCR_VISIBLE_DEVICES={rocr} leaves {one}, numbered from 0: HIP device {max(chosen)} is not among them"


IN_A_CHILD = Rule(
    code="SST111",
    name="variable-set-in-a-child",
    severity="error",
    summary="A shell command started by the script sets a variable; the script itself does not see it.",
    why=prose("""
        `os.system("export CUDA_VISIBLE_DEVICES=1")` starts a shell, sets the variable there, and ends that shell. The
        Python process, and torch in it, still see every GPU."""),
    wrong=source("""
        import os

        os.system("export CUDA_VISIBLE_DEVICES=1")
        """),
    right=source("""
        import os

        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        os.system("CUDA_VISIBLE_DEVICES=1 python other.py")
        """),
    mend='Set `os.environ["CUDA_VISIBLE_DEVICES"]` before torch is used.',
    fixed=source("""
        import os

        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        """),
)


@IN_A_CHILD.python
def _in_a_child(script: Script) -> Iterator[Finding]:
    for call in script.calls("os.system", "subprocess.run", "subprocess.call", "subprocess.check_call", "os.popen"):
        text = script.value(call.args[0]).text if call.args else None
        for name in VARIABLES:
            head, _, value = (text or "").strip().partition("=")
            words = head.split()
            if words not in (["export", name], [name]) or any(mark in value for mark in " ;&|$`\n"):
                continue
            statement = script.statement(call)
            fix: tuple[Edit, ...] = ()
            if script.name(call) == "os.system" and isinstance(statement, ast.Expr) and statement.value is call:
                module, value = script.source(call.func).rpartition(".")[0], value.strip("'\"")
                if module:
                    fix = (ReplaceStatement(script.span(call), f'{module}.environ["{name}"] = "{value}"'),)
            yield IN_A_CHILD.at(
                script, call, f"{name} is set in a shell that ends at once; this process does not see it", *fix
            )


NO_ORDER = Rule(
    code="SST112",
    name="device-order-not-set",
    severity="warning",
    summary="Devices are chosen by number, and CUDA_DEVICE_ORDER is not set.",
    why=prose("""
        Without CUDA_DEVICE_ORDER=PCI_BUS_ID the CUDA driver numbers the fastest GPU 0, while nvidia-smi numbers by PCI
        address. On a machine with unequal GPUs, device 1 is then not the GPU that nvidia-smi calls 1. `samestep run`
        sets the variable; a plain `python` does not. This rule is off by default: on machines with equal GPUs it
        rarely matters."""),
    wrong=source("""
        import os

        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        """),
    right=source("""
        import os

        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        """),
    mend="Set CUDA_DEVICE_ORDER=PCI_BUS_ID beside CUDA_VISIBLE_DEVICES.",
    fixed=source("""
        import os

        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        """),
    default=False,
)


@NO_ORDER.python
def _no_order(script: Script) -> Iterator[Finding]:
    found = settings(script)
    if any(each.name == "CUDA_DEVICE_ORDER" for each in found):
        return
    for each in found:
        if (
            each.own
            and each.name == "CUDA_VISIBLE_DEVICES"
            and indices(script.value(each.value).text or "") is not None
        ):
            fix: tuple[Edit, ...] = ()
            if isinstance(each.node, ast.Assign) and isinstance(each.node.targets[0], ast.Subscript):
                environ = script.source(each.node.targets[0].value)
                line = f'{environ}["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"'
                fix = (InsertStatement(script.span(each.node), line, "before"),)
            yield NO_ORDER.at(
                script, each.node, "the numbers may not be those of nvidia-smi: CUDA_DEVICE_ORDER is not set", *fix
            )
            return


RULES = [TOO_LATE, HIP_AND_ROCR, IN_A_CHILD, NO_ORDER]
