"""Which calls say that a script is a distributed program, and how it gets its processes."""

from __future__ import annotations

import ast
from typing import Literal

from samestep.launch.sources import Module

Kind = Literal["group", "processes"]

_GROUP = frozenset(
    {
        "torch.distributed.init_process_group",
        "torch.distributed.distributed_c10d.init_process_group",
        "torch.distributed.init_device_mesh",
        "torch.distributed.device_mesh.init_device_mesh",
        "deepspeed.init_distributed",
        "ignite.distributed.initialize",
        "ignite.distributed.utils.initialize",
    }
)
#: These start processes for whatever function; they count if the program sets up a process group somewhere.
SPAWN = frozenset(
    {
        "torch.multiprocessing.spawn",
        "torch.multiprocessing.start_processes",
        "torch.multiprocessing.spawn.spawn",
        "torch.multiprocessing.Process",
        "multiprocessing.Process",
        "torch.multiprocessing.get_context.Process",
    }
)
_LAUNCHERS = frozenset(
    {
        "ignite.distributed.spawn",
        "accelerate.notebook_launcher",
        "accelerate.debug_launcher",
        "accelerate.launchers.notebook_launcher",
        "accelerate.launchers.debug_launcher",
        "torch.distributed.launcher.api.elastic_launch",
        "torch.distributed.launcher.elastic_launch",
    }
)
_ENGINES = ("DistributedDataParallelEngine", "DistributedDataParallelAMPEngine", "DistributedDataParallelApexEngine")
_PARALLEL = frozenset({"ignite.distributed.Parallel", "ignite.distributed.launcher.Parallel"})
#: Strategies of Lightning that start several processes from one; for the other ones the launcher can start them.
_INSIDE = ("spawn", "fork", "notebook")
_ALONE = ("auto", "dp", "single")


def marker(module: Module, call: ast.Call, devices: tuple[str, int]) -> tuple[Kind, str] | None:
    """What a call tells about the program: the kind and the call in short; None if nothing.

    `devices` are the kind and number of those chosen: Lightning's `devices=2` can be met by the launcher only then.
    """
    name = module.dotted(call.func)
    if not name:
        return None
    short = ast.unparse(call.func)
    if name in _GROUP:
        if "initialize" in name and not _literal_backend(module, call, 0):
            return None
        return "group", f"{short}(…)"
    if name in _PARALLEL:
        return _ignite_parallel(module, call, short)
    if name in _LAUNCHERS:
        return "processes", f"{short}(…)"
    if name.startswith("catalyst.") and name.rpartition(".")[2] in _ENGINES:
        return "processes", f"{short}(…)"
    if name.startswith(("lightning.", "pytorch_lightning.")) and name.rpartition(".")[2] in ("Trainer", "Fabric"):
        return _lightning(module, call, short, devices)
    return None


def value_of(module: Module, node: ast.expr | None) -> object:
    """The value of a literal, or of a name that stands for one; `...` if it is not known before the run."""
    if isinstance(node, ast.Name) and node.id in module.constants:
        return module.constants[node.id]
    try:
        return ast.literal_eval(node) if node is not None else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ...


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """The expression given for a parameter."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if position is not None and len(call.args) > position and not isinstance(call.args[position], ast.Starred):
        return call.args[position]
    return None


def _literal_backend(module: Module, call: ast.Call, position: int) -> bool:
    backend = value_of(module, argument(call, "backend", position))
    return isinstance(backend, str) and not backend.startswith("xla")


def _ignite_parallel(module: Module, call: ast.Call, short: str) -> tuple[Kind, str] | None:
    if not _literal_backend(module, call, 0):
        return None
    backend = value_of(module, argument(call, "backend", 0))
    count = argument(call, "nproc_per_node", 1)
    if value_of(module, count) is None:
        return "group", f"{short}(backend={backend!r})"
    assert count is not None
    return "processes", f"{short}(backend={backend!r}, nproc_per_node={ast.unparse(count)})"


def _lightning(module: Module, call: ast.Call, short: str, devices: tuple[str, int]) -> tuple[Kind, str] | None:
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    strategy, wanted = given.get("strategy"), value_of(module, given.get("devices"))
    several = _several(wanted)
    name = _strategy_name(module, strategy)
    if name is None or (name.startswith(_ALONE) and not (name == "auto" and several)):
        return None
    text = ", ".join(f"{key}={ast.unparse(given[key])}" for key in ("strategy", "devices") if key in given)
    kind, count = devices
    everything = wanted in (None, "auto", -1, "-1")
    met = count if everything and kind != "cpu" else len(wanted) if isinstance(wanted, list) else _number(wanted)
    outside = met == count and not any(part in name for part in _INSIDE)
    return "group" if outside else "processes", f"{short}({text})"


def _number(devices: object) -> object:
    return int(devices) if isinstance(devices, str) and devices.isdigit() else devices


def _several(devices: object) -> bool:
    if isinstance(devices, bool):
        return False
    if isinstance(devices, int):
        return devices > 1
    if isinstance(devices, str):
        return "," in devices.strip(",") or (devices.isdigit() and int(devices) > 1)
    return isinstance(devices, list) and len(devices) > 1


def _strategy_name(module: Module, node: ast.expr | None) -> str | None:
    """The strategy in lower case, `auto` without one; None if it is not known before the run."""
    if isinstance(node, ast.Call):
        start = value_of(module, argument(node, "start_method"))
        return ast.unparse(node.func).rpartition(".")[2].lower() + (f"_{start}" if isinstance(start, str) else "")
    value = value_of(module, node)
    if value is None:
        return "auto"
    return value.lower() if isinstance(value, str) else None
