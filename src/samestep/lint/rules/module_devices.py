"""SST1: on which device a wrapped module is, and on which each rank works."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from samestep.lint.findings import Finding
from samestep.lint.python.script import Script, argument
from samestep.lint.python.values import Value
from samestep.lint.registry import Rule, prose, source

ELSEWHERE = Rule(
    code="SST105",
    name="module-not-on-first-device",
    severity="error",
    summary="The module given to DataParallel is not on the first of its device_ids.",
    why=prose("""
        DataParallel copies the module from `device_ids[0]` to the others at each step, so it must be there. Otherwise
        the first forward ends with `module must have its parameters and buffers on device cuda:1 (device_ids[0]) but
        found one of them on device: cuda:0` (mmdetection#2632)."""),
    wrong=source("""
        import torch

        model = torch.nn.Linear(2, 2).cuda()
        model = torch.nn.DataParallel(model, device_ids=[1, 3])
        """),
    right=source("""
        import torch

        model = torch.nn.Linear(2, 2).cuda(1)
        model = torch.nn.DataParallel(model, device_ids=[1, 3])
        """),
    mend='Move the module to `device_ids[0]`: `model.to("cuda:1")`. Labels belong on the output device, the same one.',
)


@ELSEWHERE.python
def _elsewhere(script: Script) -> Iterator[Finding]:
    moves_current = any(True for _ in script.calls("torch.cuda.set_device", "torch.cuda.device"))
    for call in script.calls("torch.nn.DataParallel"):
        given = argument(call, "module", 0)
        first = _first_device(script, call)
        moved_after = isinstance(script.parents.get(call), ast.Attribute)
        if given is not None and first is not None and not _is_single(script, call) and not moved_after:
            message = _mismatch(first, script.value(given), moves_current)
            if message:
                yield ELSEWHERE.at(script, call, message)
    for call in script.method_calls("cuda", "to"):
        assert isinstance(call.func, ast.Attribute)
        wrapped, moved = script.value(call.func.value), script.value(call)
        if wrapped.kind != "data_parallel" or not wrapped.certain or wrapped.call is None:
            continue
        first = _first_device(script, wrapped.call)
        if first is not None and moved.location != wrapped.location:
            message = _mismatch(first, moved, moves_current)
            if message:
                yield ELSEWHERE.at(script, call, message)


def _first_device(script: Script, call: ast.Call) -> int | None:
    """`device_ids[0]` of a DataParallel call; 0 where none are given; None where it cannot be told."""
    given = argument(call, "device_ids", 1)
    if given is None:
        hidden = any(keyword.arg is None for keyword in call.keywords) or len(call.args) > 1
        return None if hidden else 0
    value = script.value(given)
    if value.kind == "constant" and value.data is None:
        return 0
    return value.numbers[0] if value.numbers else None


def _is_single(script: Script, call: ast.Call) -> bool:
    """Whether there is one device only: then DataParallel moves the module itself."""
    numbers = script.value(argument(call, "device_ids", 1)).numbers
    return numbers is not None and len(numbers) == 1


def _mismatch(first: int, module: Value, moves_current: bool) -> str | None:
    where = module.location
    if where == "cuda" and not moves_current:
        where = "cuda:0"
    if not where.startswith("cuda:") or where == f"cuda:{first}":
        return None
    return f"the module is on {where}, and DataParallel wants it on cuda:{first}, its first device"


ALL_ON_ONE = Rule(
    code="SST113",
    name="every-rank-on-one-gpu",
    severity="error",
    summary="Each rank of a distributed program uses `cuda` without an index, and none chooses its own device.",
    why=prose("""
        `cuda` is the current device, which is 0 until `torch.cuda.set_device` is called. So every rank puts its
        replica on GPU 0: out of memory, or `Duplicate GPU detected` from NCCL, or a run as slow as one GPU
        (examples#969, pytorch#23138)."""),
    wrong=source("""
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        dist.init_process_group("nccl")
        model = DistributedDataParallel(torch.nn.Linear(2, 2).cuda())
        """),
    right=source("""
        import os
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        model = DistributedDataParallel(torch.nn.Linear(2, 2).cuda())
        """),
    mend='Call `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before anything is put on a GPU.',
)


@ALL_ON_ONE.python
def _all_on_one(script: Script) -> Iterator[Finding]:
    if not any(True for _ in script.calls("torch.distributed.init_process_group")):
        return
    if any(script.mentions(word) for word in ("set_device", "cuda_visible_devices", "device_id", "cuda.device(")):
        return
    if any(True for _ in script.calls("torch.cuda.device")) or _computes_device(script):
        return
    for call in script.calls("torch.nn.parallel.DistributedDataParallel"):
        given = argument(call, "module", 0)
        if script.value(given).location in ("cuda", "cuda:0") and argument(call, "device_ids", 1) is None:
            where = script.value(given).location
            yield ALL_ON_ONE.at(script, call, f"each rank's model is on {where!r}: no rank chooses a device of its own")


def _computes_device(script: Script) -> bool:
    """Whether any device is made from something that is no constant: a rank, most likely."""
    for call in script.calls():
        is_move = isinstance(call.func, ast.Attribute) and call.func.attr in ("cuda", "to")
        if (is_move or script.name(call) == "torch.device") and call.args:
            value = script.value(call.args[0])
            if value.kind == "unknown" and not script.name(call.args[0]).startswith("torch."):
                return True
            if value.kind == "device" and not value.location:
                return True
    return False


RULES = [ELSEWHERE, ALL_ON_ONE]
