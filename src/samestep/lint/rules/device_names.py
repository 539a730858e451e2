"""SST1: devices named in code: strings, indices, and values that are moved."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from samestep.lint.device_lists import indices
from samestep.lint.findings import Edit, Finding, ReplaceExpression, ReplaceStatement
from samestep.lint.python.edits import new_string
from samestep.lint.python.environment import settings
from samestep.lint.python.names import dotted_name
from samestep.lint.python.script import Script, argument
from samestep.lint.python.values import PART
from samestep.lint.registry import Rule, prose, source

#: Functions that make a tensor or generator on the device given as `device=`.
DEVICE_ARGUMENT = {
    *("torch.zeros", "torch.ones", "torch.empty", "torch.rand", "torch.randn", "torch.tensor", "torch.arange"),
    *("torch.full", "torch.as_tensor", "torch.Generator", "torch.eye", "torch.randint", "torch.linspace"),
}


def device_strings(script: Script) -> Iterator[ast.expr]:
    """The expressions that torch takes for a device, or that are called one: in torch.device, .to, .cuda, device=."""
    for call in script.calls():
        name = script.name(call)
        if name in ("torch.device", "torch.cuda.set_device", "torch.cuda.device"):
            given = call.args[0] if call.args else None
        elif isinstance(call.func, ast.Attribute) and call.func.attr in ("to", "cuda") and call.args:
            given = call.args[0]
        else:
            given = argument(call, "device") if name in DEVICE_ARGUMENT else None
        if given is not None:
            yield given


BAD_NAME = Rule(
    code="SST102",
    name="not-one-device",
    severity="error",
    summary="A device string names several devices, or is none that torch knows.",
    why=prose("""
        `torch.device("cuda:1,3")` raises `Invalid device string`: a tensor is on one device. Several devices are
        chosen with CUDA_VISIBLE_DEVICES, or with `samestep run --devices 1,3`, and then numbered from 0."""),
    wrong=source("""
        import torch

        device = torch.device("cuda:1,3")
        """),
    right=source("""
        import torch

        device = torch.device("cuda:1")
        """),
    mend=prose("""
        Name one device: `"cuda"`, `"cuda:1"`, `"cpu"`. Choose several by `samestep run --devices 1,3`. `--fix` mends
        what is nearly right, such as `"cuda0"` or `"CUDA:1"`."""),
    fixes_some=True,
)
_SEVERAL = re.compile(r"(cuda|gpu)\s*:?\s*\[?\d+(\s*,\s*(cuda:|gpu:)?\d+)+\]?|\d+(\s*,\s*\d+)+", re.IGNORECASE)
_GOOD = re.compile(r"[a-z][a-z_]*(:(0|[1-9]\d*))?", re.ASCII)
_NEARLY = re.compile(r"\s*cuda\s*:?\s*(\d+)\s*|(cuda)\s*:?\s*", re.IGNORECASE | re.ASCII)


@BAD_NAME.python
def _bad_name(script: Script) -> Iterator[Finding]:
    if not script.names.imports("torch"):
        return
    for node in device_strings(script):
        value = script.value(node)
        text = value.text
        if value.numbers is not None and len(value.numbers) > 1 and _of_cuda(script, node):
            yield BAD_NAME.at(script, node, f"{value.numbers} are several devices where one is wanted")
        if (
            text is None
            or not text.isascii()
            or (_GOOD.fullmatch(text) and text != "gpu" and not text.startswith("gpu:"))
        ):
            continue
        if _SEVERAL.fullmatch(text.strip()):
            yield BAD_NAME.at(script, node, f"{text!r} names several devices; torch takes one")
        elif found := _NEARLY.fullmatch(text):
            meant = f"cuda:{int(found[1])}" if found[1] else "cuda"
            yield BAD_NAME.at(
                script, node, f"torch does not know {text!r}; write {meant!r}", *new_string(script, node, meant)
            )
        elif re.fullmatch(r"gpu(:\d+)?", text, re.IGNORECASE):
            yield BAD_NAME.at(script, node, f"torch does not know {text!r}; GPUs are called 'cuda', 'cuda:1', 'xpu' …")


def _of_cuda(script: Script, node: ast.expr) -> bool:
    call = script.parents.get(node)
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "cuda"


NOT_RENUMBERED = Rule(
    code="SST106",
    name="devices-not-renumbered",
    severity="error",
    summary="A device index counts all GPUs, while CUDA_VISIBLE_DEVICES, set in the same file, renumbers them from 0.",
    why=prose("""
        Behind CUDA_VISIBLE_DEVICES=2,3 there are two devices, 0 and 1. `device_ids=[2, 3]` or `"cuda:2"` ends with
        `invalid device ordinal`, or, with other numbers, takes another GPU than the one meant (Lightning#2407)."""),
    wrong=source("""
        import os

        os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"
        import torch

        model = torch.nn.DataParallel(torch.nn.Linear(2, 2), device_ids=[2, 3])
        """),
    right=source("""
        import os

        os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"
        import torch

        model = torch.nn.DataParallel(torch.nn.Linear(2, 2), device_ids=[0, 1])
        """),
    mend="Count from 0 within the list given to CUDA_VISIBLE_DEVICES.",
    fixed=source("""
        import os

        os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"
        import torch

        model = torch.nn.DataParallel(torch.nn.Linear(2, 2), device_ids=[0, 1])
        """),
)


@NOT_RENUMBERED.python
def _not_renumbered(script: Script) -> Iterator[Finding]:
    found = [each for each in settings(script) if each.own and each.name == "CUDA_VISIBLE_DEVICES"]
    if len(found) != 1 or found[0].default or _is_conditional(script, found[0].node):
        return
    visible = indices(script.value(found[0].value).text or "")
    if visible is None or len(set(visible)) != len(visible):
        return
    many = "1 device" if len(visible) == 1 else f"{len(visible)} devices"
    for node, numbers in _indices_used(script):
        beyond = [number for number in numbers if number >= len(visible)]
        if not beyond or script.statement(node).lineno < found[0].node.lineno:
            continue
        chosen = f"CUDA_VISIBLE_DEVICES={script.value(found[0].value).text}"
        message = f"{chosen} leaves {many}, numbered from 0: there is no {beyond[0]}"
        fix: tuple[Edit, ...] = ()
        if all(number in visible for number in numbers):
            renumbered = [visible.index(number) for number in numbers]
            if isinstance(node, ast.List):
                fix = (ReplaceExpression(script.span(node), str(renumbered)),)
            elif isinstance(node, ast.Constant):
                text = f"cuda:{renumbered[0]}"
                fix = (
                    new_string(script, node, text)
                    if isinstance(node.value, str)
                    else (ReplaceExpression(script.span(node), str(renumbered[0])),)
                )
        yield NOT_RENUMBERED.at(script, node, message, *fix)


def _is_conditional(script: Script, node: ast.AST) -> bool:
    around = script.ancestors(node)
    for each in around:
        if isinstance(each, ast.If) and "__name__" not in {
            n.id for n in ast.walk(each.test) if isinstance(n, ast.Name)
        }:
            return True
        if isinstance(each, ast.For | ast.While | ast.Try | ast.FunctionDef | ast.Lambda | ast.IfExp):
            return not (isinstance(each, ast.FunctionDef) and each.name == "main")
    return False


def _indices_used(script: Script) -> Iterator[tuple[ast.expr, list[int]]]:
    for node in device_strings(script):
        value = script.value(node)
        found = re.fullmatch(r"cuda:(\d+)", value.text or "")
        if found:
            yield node, [int(found[1])]
        elif value.whole_number is not None and (
            _of_cuda(script, node) or script.name(script.parents[node]).startswith("torch.cuda.")
        ):
            yield node, [value.whole_number]
    for call in script.calls("torch.nn.DataParallel", "torch.nn.parallel.DistributedDataParallel"):
        for name, position in (("device_ids", 1), ("output_device", 2)):
            node_given = argument(call, name, position)
            value = script.value(node_given)
            numbers = value.numbers or ([value.whole_number] if value.whole_number is not None else [])
            if node_given is not None and numbers:
                yield node_given, [number for number in numbers if number is not None]


DROPPED = Rule(
    code="SST109",
    name="moved-tensor-dropped",
    severity="error",
    summary="`tensor.to(device)` is called and its result dropped: the tensor stays where it was.",
    why=prose("""
        A module is moved in place; a tensor is not: `.to()`, `.cuda()` and `.cpu()` return a new one. The next
        operation ends with `Expected all tensors to be on the same device`, or silently runs on the CPU."""),
    wrong=source("""
        import torch
        from torch.utils.data import DataLoader


        def train(model, dataset, device):
            loader = DataLoader(dataset, batch_size=16)
            for images, labels in loader:
                images.to(device)
                loss = model(images).sum()
        """),
    right=source("""
        import torch
        from torch.utils.data import DataLoader


        def train(model, dataset, device):
            model.to(device)
            loader = DataLoader(dataset, batch_size=16)
            for images, labels in loader:
                images = images.to(device)
                loss = model(images).sum()
        """),
    mend="Assign the result: `images = images.to(device)`.",
    fixed=source("""
        import torch
        from torch.utils.data import DataLoader


        def train(model, dataset, device):
            loader = DataLoader(dataset, batch_size=16)
            for images, labels in loader:
                images = images.to(device)
                loss = model(images).sum()
        """),
)
#: Batches of these libraries are moved in place.
_IN_PLACE = ("torch_geometric", "transformers", "torchtext", "dgl", "monai", "tensordict")
_LOADER_NAME = re.compile(r"(^|_)(data_?)?loaders?($|_)|loader$|_dl$", re.IGNORECASE)


@DROPPED.python
def _dropped(script: Script) -> Iterator[Finding]:
    in_place = any(script.names.imports(library) for library in _IN_PLACE)
    for statement in script.of_type(ast.Expr):
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if call.func.attr not in ("to", "cuda", "cpu") or not dotted_name(call.func.value):
            continue
        value = script.value(call.func.value)
        from_pair = (value.kind == "batch" and value.data == PART) or _is_from_pair(script, call.func.value)
        if value.kind == "tensor" or (from_pair and not in_place):
            name = script.source(call.func.value)
            message = f"{name}.{call.func.attr}() returns the moved tensor, and the result is dropped: {name} stays"
            fix = ReplaceStatement(script.span(call), f"{name} = {script.source(call)}")
            yield DROPPED.at(script, call, message, fix)


def _is_from_pair(script: Script, node: ast.expr) -> bool:
    """Whether the name is one of several that a loop over what is called a loader unpacks."""
    if not isinstance(node, ast.Name):
        return False
    for loop in script.inside(node, ast.For):
        assert isinstance(loop, ast.For)
        target, iterated = loop.target, loop.iter
        if isinstance(iterated, ast.Call) and isinstance(target, ast.Tuple) and len(target.elts) == 2:
            called = dotted_name(iterated.func).rpartition(".")[2]
            if called == "enumerate" and iterated.args:
                target, iterated = target.elts[1], iterated.args[0]
        while isinstance(iterated, ast.Call) and dotted_name(iterated.func).rpartition(".")[2] in ("tqdm", "enumerate"):
            if not iterated.args:
                break
            iterated = iterated.args[0]
        if not isinstance(target, ast.Tuple) or not any(
            isinstance(e, ast.Name) and e.id == node.id for e in target.elts
        ):
            continue
        if isinstance(iterated, ast.Subscript):  # dataloaders["train"]
            iterated = iterated.value
        if _LOADER_NAME.search(dotted_name(iterated).rpartition(".")[2]):
            return True
    return False


RULES = [BAD_NAME, NOT_RENUMBERED, DROPPED]
