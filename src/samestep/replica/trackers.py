"""Experiment trackers: off on ranks other than main, so that a run is reported once.

By the trackers' own switches where there are any (environment variables, read when the library starts), else by a
change of the call that starts them. Their functions stay callable and their arguments are still computed: nothing
that could contain a collective is skipped. TensorBoard needs nothing here; it writes files, which stay private.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from .patching import Patches, after_import

_SWITCHES = {
    "WANDB_MODE": "disabled",
    "WANDB_SILENT": "true",
    "NEPTUNE_MODE": "debug",
    "COMET_DISABLE_AUTO_LOGGING": "1",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "disabled",
}

_installed: Patches | None = None


def _with_options(function: Callable[..., Any], **forced: Any) -> Callable[..., Any]:
    @functools.wraps(function)
    def replacement(*args: Any, **options: Any) -> Any:
        return function(*args, **{**options, **forced})

    return replacement


def _force(owner: Any, name: str, patches: Patches, **forced: Any) -> None:
    function = getattr(owner, name, None)
    if function is not None and name in vars(owner):
        patches.set(owner, name, _with_options(function, **forced))


def _wandb(patches: Patches, module: ModuleType) -> None:
    # The environment is not enough: `wandb.init(mode="online")` outranks it.
    _force(module, "init", patches, mode="disabled")


def _comet(patches: Patches, module: ModuleType) -> None:
    for name in ("Experiment", "ExistingExperiment", "OfflineExperiment"):
        owner = getattr(module, name, None)
        if isinstance(owner, type):
            _force(owner, "__init__", patches, disabled=True)


def _visdom(patches: Patches, module: ModuleType) -> None:
    # `send=False` is visdom's own switch: messages are made, not sent.
    _force(module.Visdom, "__init__", patches, send=False, use_incoming_socket=False)


def _mlflow(patches: Patches, module: ModuleType) -> None:
    # A script that names its server would outrank the environment.
    def stay(uri: Any) -> None:
        """Keep to the private directory."""

    if "set_tracking_uri" in vars(module):
        patches.replace(module, "set_tracking_uri", stay)


def install_replica(scratch: Path | None = None) -> None:
    """Switch trackers off in this process; mlflow, which has no switch, records below `scratch`."""
    global _installed
    if _installed is not None:
        return
    patches = _installed = Patches()
    switches = dict(_SWITCHES)
    actions: dict[str, Callable[[ModuleType], None]] = {
        "wandb": functools.partial(_wandb, patches),
        "comet_ml": functools.partial(_comet, patches),
        "visdom": functools.partial(_visdom, patches),
    }
    if scratch is not None:
        switches["MLFLOW_TRACKING_URI"] = f"file:{scratch / 'mlflow'}"
        switches["MLFLOW_ALLOW_FILE_STORE"] = "true"  # newer versions ask before using files
        actions["mlflow"] = functools.partial(_mlflow, patches)
    for name, value in switches.items():
        _set_variable(patches, name, value)
    after_import(patches, actions)
    patches.sweep()


def _set_variable(patches: Patches, name: str, value: str) -> None:
    before = os.environ.get(name)
    os.environ[name] = value

    def restore() -> None:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before

    patches.on_undo(restore)


def uninstall() -> None:
    """Take everything back (for tests)."""
    global _installed
    if _installed is not None:
        patches, _installed = _installed, None
        patches.undo()
