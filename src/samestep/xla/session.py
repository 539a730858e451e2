"""Running an ordinary script on XLA devices: the one process of such a run."""

from __future__ import annotations

import importlib
import os
from typing import Any

from samestep.errors import SamestepError
from samestep.launch.context import RankContext
from samestep.launch.script import ScriptTarget, run_target
from samestep.notice import notice
from samestep.xla import names, spmd

_DEVICE, _CPU_COUNT = "PJRT_DEVICE", "CPU_NUM_DEVICES"


def run_on_xla(context: RankContext, target: ScriptTarget) -> None:
    """Run the script in this process on the chosen number of XLA devices.

    One device is torch_xla as it is. Several are driven by this one process in SPMD mode, so that the script's numbers
    stay those of one.
    """
    count = context.selection.count
    _choose_runtime(count)
    try:
        importlib.import_module("torch_xla")
    except ImportError as error:
        raise SamestepError(f"XLA devices need a torch_xla that fits the installed torch: {error}") from error
    names.supply()
    divider = None
    if count > 1:
        divider = spmd.use_devices(count)
        divider.install()
        spmd.run_launched_functions_here()
    run_target(target)
    if divider is not None and not divider.marked:
        notice(
            f"nothing was divided: no batch of a DataLoader went to the XLA device, so each of the {count} devices "
            "computed all of it"
        )


def _choose_runtime(count: int) -> None:
    """TPUs if there are any, else the CPU; on the CPU there are as many devices as asked for."""
    if _DEVICE not in os.environ:
        os.environ[_DEVICE] = "TPU" if _has_tpu() else "CPU"
    if os.environ[_DEVICE] == "CPU" and count > 1:
        os.environ[_CPU_COUNT] = str(count)


def _has_tpu() -> bool:
    return any(os.path.exists(path) for path in ("/dev/accel0", "/dev/vfio/0")) and _has_library()


def _has_library() -> bool:
    find: Any = importlib.import_module("importlib.util").find_spec
    return find("libtpu") is not None
