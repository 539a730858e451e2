"""Running a script that is a distributed program: as one of torchrun's processes, or as the one that starts them.

Everything stays on loopback: the launcher's store listens on 127.0.0.1, and Gloo and NCCL are told to use that
interface.
"""

from __future__ import annotations

import os
import socket

from samestep.launch import children, trigger
from samestep.launch.context import RankContext
from samestep.launch.mode import Choice
from samestep.launch.script import ScriptTarget, run_target

_HOST = "127.0.0.1"
_INTERFACE = "lo"
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def run_as_rank(context: RankContext, target: ScriptTarget, choice: Choice, again: bool) -> None:
    """Be one of `context.world_size` processes, with the variables that torchrun sets."""
    os.environ.update(torchrun_variables(context))
    _stay_on_loopback()
    from samestep.launch import device_hooks  # imports torch, before which the launcher divides the cores

    device_hooks.install_for_distributed(context)
    trigger.install(context, choice, again)
    run_target(target)


def run_as_starter(context: RankContext, target: ScriptTarget, choice: Choice, again: bool) -> None:
    """Be the one process that the user would start: it starts the others, and this is where they are reported."""
    os.environ.update(MASTER_ADDR=_HOST, MASTER_PORT=str(_free_port()))
    _stay_on_loopback()
    trigger.install(context, choice, again)
    with children.reported(context.run_dir):
        run_target(target)


def torchrun_variables(context: RankContext) -> dict[str, str]:
    """What torchrun puts into the environment of one process on one machine."""
    rank, size = str(context.rank), str(context.world_size)
    return {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size,
        "ROLE_NAME": "default",
        "MASTER_ADDR": _HOST,
        "MASTER_PORT": str(context.store_port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": f"samestep-{context.shared_seed:x}",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


def _stay_on_loopback() -> None:
    for name in _INTERFACES:
        os.environ.setdefault(name, _INTERFACE)


def _free_port() -> int:
    """A port for the rendezvous of the processes that the script starts; frameworks' fixed ones may be taken."""
    with socket.create_server((_HOST, 0)) as server:
        port: int = server.getsockname()[1]
        return port
