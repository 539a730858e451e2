"""SST5: modules and the wrappers around them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from samestep.lint.findings import Finding, ReplaceExpression
from samestep.lint.python.names import dotted_name
from samestep.lint.python.reach import tests_around
from samestep.lint.python.script import Script, argument, identifiers
from samestep.lint.registry import Rule, prose, source

_DP = "torch.nn.DataParallel"
_DDP = "torch.nn.parallel.DistributedDataParallel"
_FSDP = "torch.distributed.fsdp.FullyShardedDataParallel"
_CONVERT = "torch.nn.SyncBatchNorm.convert_sync_batchnorm"

SYNC_BN_ALONE = Rule(
    code="SST503",
    name="sync-batch-norm-without-processes",
    severity="error",
    summary="SyncBatchNorm is used with DataParallel, which has one process.",
    why=prose("""
        SyncBatchNorm exchanges its statistics between processes. Under DataParallel there is one, and the first
        forward in training mode raises `Default process group has not been initialized`. The batch norm of
        DataParallel works on each GPU's part alone: measured, the first gradient differs by 53 % from that of one
        device."""),
    wrong=source("""
        import torch


        def prepare(model):
            model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
            return torch.nn.DataParallel(model.cuda())
        """),
    right=source("""
        import torch
        from torch.nn.parallel import DistributedDataParallel


        def prepare(model, local_rank):
            model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model).to(local_rank)
            return DistributedDataParallel(model, device_ids=[local_rank])
        """),
    mend="Use DistributedDataParallel; or `samestep run`, whose batch norm has the statistics of the whole batch.",
)


@SYNC_BN_ALONE.python
def _sync_bn_alone(script: Script) -> Iterator[Finding]:
    words = ("init_process_group", "distributeddataparallel", "torch.distributed", "deepspeed", "accelerator", "fabric")
    known = any(word in module.lower() for word in words for module in script.names.modules)
    if known or any(script.mentions(word) for word in words) or not any(True for _ in script.calls(_DP)):
        return
    for call in script.calls(_CONVERT):
        yield SYNC_BN_ALONE.at(
            script, call, "SyncBatchNorm needs a process group; DataParallel has one process and no group"
        )


SYNC_BN_LATE = Rule(
    code="SST504",
    name="sync-batch-norm-after-wrapping",
    severity="warning",
    summary="A model is converted to SyncBatchNorm after it was wrapped.",
    why=prose("""
        DistributedDataParallel looks at the module once, in its constructor. Layers put in afterwards are not checked
        by it, and older releases of torch refuse them at the first forward (`SyncBatchNorm is only supported within
        torch.nn.parallel.DistributedDataParallel`). Only the order convert, then wrap, is documented."""),
    wrong=source("""
        import torch
        from torch.nn.parallel import DistributedDataParallel


        def prepare(model):
            model = DistributedDataParallel(model)
            return torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
        """),
    right=source("""
        import torch
        from torch.nn.parallel import DistributedDataParallel


        def prepare(model):
            model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
            return DistributedDataParallel(model)
        """),
    mend="Convert first, then wrap.",
)


@SYNC_BN_LATE.python
def _sync_bn_late(script: Script) -> Iterator[Finding]:
    for call in script.calls(_CONVERT):
        value = script.value(call.args[0]) if call.args else None
        if value is not None and value.kind in ("ddp", "fsdp") and value.certain:
            yield SYNC_BN_LATE.at(script, call, "convert before wrapping: the wrapper looks at the module once")


SEVERAL_IDS = Rule(
    code="SST507",
    name="several-devices-for-one-rank",
    severity="error",
    summary="DistributedDataParallel is given several device_ids.",
    why=prose("""
        It has one device per process; `device_ids=[0, 1]` raises `device_ids can only be None or contain a single
        element`. The list is usually left over from DataParallel."""),
    wrong=source("""
        from torch.nn.parallel import DistributedDataParallel


        def wrap(model):
            return DistributedDataParallel(model, device_ids=[0, 1])
        """),
    right=source("""
        from torch.nn.parallel import DistributedDataParallel


        def wrap(model, local_rank):
            return DistributedDataParallel(model, device_ids=[local_rank])
        """),
    mend="Give the rank's own device: `device_ids=[local_rank]`.",
)


@SEVERAL_IDS.python
def _several_ids(script: Script) -> Iterator[Finding]:
    for call in script.calls(_DDP):
        given = argument(call, "device_ids", 1)
        value = script.value(given)
        several = isinstance(given, ast.List | ast.Tuple) and len(given.elts) > 1
        if several and any(isinstance(each, ast.Starred) for each in getattr(given, "elts", [])):
            continue
        if given is not None and (several or (value.numbers is not None and len(value.numbers) > 1)):
            yield SEVERAL_IDS.at(script, given, "DistributedDataParallel takes one device per process: ValueError")


THROUGH_WRAPPER = Rule(
    code="SST508",
    name="attribute-of-the-wrapped-module",
    severity="error",
    summary="An attribute of the model is read through its wrapper, which does not have it.",
    why=prose("""
        `nn.DataParallel(model)` is another module, with the model in its `.module`: `model.fc` raises `'DataParallel'
        object has no attribute 'fc'`, often only at the end of the first epoch. 29 of 68 repositories read go through
        `.module`."""),
    wrong=source("""
        import torch


        def train(model):
            model = torch.nn.DataParallel(model)
            return torch.optim.SGD(model.classifier.parameters(), lr=0.1)
        """),
    right=source("""
        import torch


        def train(model):
            model = torch.nn.DataParallel(model)
            return torch.optim.SGD(model.module.classifier.parameters(), lr=0.1)
        """),
    mend="Go through `.module`: `model.module.classifier`.",
    fixed=source("""
        import torch


        def train(model):
            model = torch.nn.DataParallel(model)
            return torch.optim.SGD(model.module.classifier.parameters(), lr=0.1)
        """),
)
#: What nn.Module and the wrappers themselves have.
_OWN = {
    *("T_destination", "add_module", "apply", "bfloat16", "buffers", "call_super_init", "children", "compile", "cpu"),
    *("cuda", "device_ids", "dim", "double", "dump_patches", "eval", "extra_repr", "float", "forward", "gather"),
    *("get_buffer", "get_extra_state", "get_parameter", "get_submodule", "half", "ipu", "load_state_dict", "module"),
    *("modules", "mtia", "named_buffers", "named_children", "named_modules", "named_parameters", "output_device"),
    *("parallel_apply", "parameters", "replicate", "requires_grad_", "scatter", "set_extra_state", "set_submodule"),
    *("share_memory", "src_device_obj", "state_dict", "to", "to_empty", "train", "training", "type", "xpu"),
    *("zero_grad", "no_sync", "join", "register_comm_hook", "device", "device_type", "process_group", "reducer"),
    *("logger", "find_unused_parameters", "broadcast_buffers", "gradient_as_bucket_view", "static_graph"),
    *("require_backward_grad_sync", "require_forward_param_sync", "will_sync_module_buffers", "join_hook"),
    *("parameters_to_ignore", "bucket_bytes_cap", "is_multi_device_module", "mixed_precision", "register_buffer"),
    *("bucket_bytes_cap_list", "broadcast_bucket_size", "forward_sync_buffers", "device_mesh", "modules_buffers"),
    *("named_module_buffers", "batched_grad_copy", "buffer_hook", "ddp", "use_side_stream_for_tensor_copies"),
    *("skip_all_reduce_unused_params", "bucket_cap_mb", "has_custom_per_bucket_caps", "to_kwargs", "main_hook"),
    *("post_hook", "join_device", "join_process_group", "bucket_bytes_cap_default"),
    *("register_parameter", "register_module", "num_iterations", "clip_grad_norm_", "ddp_uneven_inputs_config"),
}


@THROUGH_WRAPPER.python
def _through_wrapper(script: Script) -> Iterator[Finding]:
    stored = {
        node.attr
        for node in script.of_type(ast.Attribute)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    for node in script.of_type(ast.Attribute):
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        value = script.value(node.value)
        if value.kind not in ("data_parallel", "ddp") or not value.certain or not dotted_name(node.value):
            continue
        own = node.attr in _OWN or node.attr in stored or node.attr.startswith(("_", "register_"))
        if own or _is_guarded(script, node):
            continue
        wrapped = script.source(node.value)
        kind = "DataParallel" if value.kind == "data_parallel" else "DistributedDataParallel"
        fix = (ReplaceExpression(script.span(node.value), f"{wrapped}.module"),) if not value.assumed else ()
        yield THROUGH_WRAPPER.at(
            script, node, f"{kind} has no attribute {node.attr!r}; {wrapped}.module may have", *fix
        )


def _is_guarded(script: Script, node: ast.Attribute) -> bool:
    """Whether the code asks first (`hasattr`, `isinstance`, a test of the same variable), or expects an error."""
    name = dotted_name(node.value).rpartition(".")[2].lower()
    for test, _ in tests_around(script, node):
        words = identifiers(test.test)
        if name in words or words & {"hasattr", "isinstance", "module"}:
            return True
    return any(isinstance(each, ast.Try) for each in script.inside(node, ast.Try))


OPTIMIZER_FIRST = Rule(
    code="SST509",
    name="optimizer-before-fsdp",
    severity="error",
    summary="The optimizer is made before the model is wrapped in FullyShardedDataParallel.",
    why=prose("""
        FSDP replaces the parameters by flat, sharded ones. An optimizer made before holds the old ones: `step()`
        changes tensors that the model no longer uses, and the loss stays where it is."""),
    wrong=source("""
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel


        def prepare(model):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model = FullyShardedDataParallel(model)
            return model, optimizer
        """),
    right=source("""
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel


        def prepare(model):
            model = FullyShardedDataParallel(model)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            return model, optimizer
        """),
    mend="Wrap first, then make the optimizer.",
)


@OPTIMIZER_FIRST.python
def _optimizer_first(script: Script) -> Iterator[Finding]:
    for wrap in script.calls(_FSDP, "torch.distributed.fsdp.fully_shard"):
        model = dotted_name(wrap.args[0]) if wrap.args else ""
        for call in script.calls():
            if (
                not model
                or script.value(call).kind != "optimizer"
                or script.function(call) is not script.function(wrap)
            ):
                continue
            given = call.args[0] if call.args else argument(call, "params")
            of_model = isinstance(given, ast.Call) and dotted_name(given.func) == f"{model}.parameters"
            if of_model and call.lineno < wrap.lineno and not _made_again(script, call, wrap):
                message = f"{model}'s parameters are replaced in line {wrap.lineno}; the optimizer keeps the old ones"
                yield OPTIMIZER_FIRST.at(script, call, message)


def _made_again(script: Script, call: ast.Call, wrap: ast.Call) -> bool:
    return any(
        other is not call and script.value(other).kind == "optimizer" and other.lineno > wrap.lineno
        for other in script.calls()
        if script.function(other) is script.function(wrap)
    ) or any(test for test, _ in tests_around(script, wrap))


IN_LOOP = Rule(
    code="SST510",
    name="wrapped-again-in-a-loop",
    severity="error",
    summary="A model is wrapped anew at each turn of a loop.",
    why=prose("""
        `model = nn.DataParallel(model)` in a loop wraps the wrapper: `module.module.module.…`, one level a turn, each
        with its own replicas. DistributedDataParallel besides broadcasts all parameters and registers its hooks again
        at each turn."""),
    wrong=source("""
        import torch


        def train(model, loader):
            for images in loader:
                model = torch.nn.DataParallel(model)
                model(images)
        """),
    right=source("""
        import torch


        def train(model, loader):
            model = torch.nn.DataParallel(model)
            for images in loader:
                model(images)
        """),
    mend="Wrap once, before the loop.",
)


@IN_LOOP.python
def _in_loop(script: Script) -> Iterator[Finding]:
    for call in script.calls(_DP, _DDP, _FSDP):
        given = dotted_name(argument(call, "module", 0))
        loops = [each for each in script.inside(call, ast.For, ast.While) if isinstance(each, ast.For | ast.While)]
        statement = script.statement(call)
        if not loops or not given or not isinstance(statement, ast.Assign):
            continue
        if given not in [dotted_name(target) for target in statement.targets]:
            continue
        others = [
            each
            for each in script.walk(loops[0])
            if isinstance(each, ast.Name | ast.Attribute)
            and isinstance(each.ctx, ast.Store)
            and given.startswith(dotted_name(each))
            and script.statement(each) is not statement
        ]
        guarded = any(identifiers(test.test) & {"isinstance", "hasattr"} for test, _ in tests_around(script, call))
        if (
            not _leaves_loop(loops[0], statement)
            and not guarded
            and not [each for each in others if not _inside_value(each, call)]
        ):
            yield IN_LOOP.at(
                script, call, f"{given} is wrapped again at each turn of the loop in line {loops[0].lineno}"
            )


def _inside_value(node: ast.AST, call: ast.Call) -> bool:
    return any(each is node for each in ast.walk(call))


def _leaves_loop(loop: ast.For | ast.While, statement: ast.stmt) -> bool:
    """Whether the loop ends behind the wrapping (`break`, `return`): it happens once."""
    return any(isinstance(each, ast.Break | ast.Return) and each.lineno > statement.lineno for each in loop.body)


RULES = [SYNC_BN_ALONE, SYNC_BN_LATE, SEVERAL_IDS, THROUGH_WRAPPER, OPTIMIZER_FIRST, IN_LOOP]
