"""Watching what a script does with `torch.distributed` and with processes, in case the first guess was wrong.

The functions that set up a process group or start ranks are wrapped before the script's first line. They do what they
always did if that fits the form of the run; otherwise the run starts again in the form that fits (see `again`).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import multiprocessing
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from samestep.errors import SamestepError
from samestep.launch.again import Request, ask
from samestep.launch.context import RankContext
from samestep.launch.mode import Choice, Form
from samestep.ledger import LEDGER

_MEND = "run it with samestep run --mode distributed, or without --mode"
_HOLDERS = ("torch.distributed", "torch.distributed.distributed_c10d", "torch.distributed.device_mesh")


@dataclass(frozen=True)
class Watch:
    """What the wrapped functions need to know; `again` is False in a run that was already started again."""

    context: RankContext
    choice: Choice
    again: bool
    pid: int
    address: tuple[str | None, str | None]


def install(context: RankContext, choice: Choice, again: bool) -> None:
    """Wrap the functions in this rank."""
    address = (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
    watch = Watch(context, choice, again, os.getpid(), address)
    _wrap(_HOLDERS, "init_process_group", functools.partial(_on_group, watch))
    holders = ("torch.multiprocessing.spawn", "torch.multiprocessing")
    _wrap(holders, "start_processes", functools.partial(_on_processes, watch))


def _wrap(modules: tuple[str, ...], name: str, handler: Callable[..., Any]) -> None:
    found = [sys.modules.get(module) or importlib.import_module(module) for module in modules]
    original = getattr(found[0], name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return handler(original, *args, **kwargs)

    for module in found:
        if getattr(module, name, None) is original:
            setattr(module, name, wrapped)


def _on_group(watch: Watch, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    form, context = watch.choice.form, watch.context
    if os.getpid() != watch.pid:  # a process that the script has forked
        return original(*args, **kwargs)
    size = _world_size(original, args, kwargs)
    if form == "same":
        if context.world_size == 1 and size in (None, 1):
            _pretend_torchrun()
            return original(*args, **kwargs)
        _turn(watch, _form_of(size, context), "init_process_group")
    if form == "own":
        if size is None:
            _turn(watch, "ranks", "init_process_group")
        return original(*args, **kwargs)
    return _as_rank(watch, size, original, *args, **kwargs)


def _form_of(size: int | None, context: RankContext) -> Form:
    """What a script is that sets up a process group of `size` in the middle of the form `same`.

    With a size of more than one somebody else has been started, or will be, by the script. Lightning starts its scripts
    again by itself, but not where torchrun has done so.
    """
    if size is None or size == 1:
        return "ranks"
    lightning = any(name in sys.modules for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning"))
    own = [each for each in multiprocessing.active_children() if not each.daemon]
    return "ranks" if lightning and not own and size == context.world_size else "own"


def _as_rank(watch: Watch, size: int | None, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Set up the process group of one of the launcher's processes."""
    if (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")) != watch.address:
        # The script names a place of its own. The launcher's store does not listen there, so rank 0 must.
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    expected = watch.context.world_size
    if size == 1 and expected > 1:
        raise SamestepError(
            f"each of the {expected} processes would be rank 0 of a process group of its own (world_size=1 was given "
            "or set by the script); take rank and world_size from the environment (RANK, WORLD_SIZE), or leave them out"
        )
    result = original(*args, **kwargs)
    _check_world(expected)
    return result


def _check_world(expected: int) -> None:
    """Refuse a world that fell apart without an error: with backend "xla" on the CPU every process is rank 0 of 1."""
    dist: Any = importlib.import_module("torch.distributed")
    found = dist.get_world_size() if dist.is_initialized() else expected
    if found == 1 and expected > 1:
        raise SamestepError(
            f"each of the {expected} processes is rank 0 of a process group of its own: the backend "
            f"{dist.get_backend()!r} has not found the others, and each would train alone; on XLA devices run "
            "without init_process_group, by --devices xla:N (one process drives all devices)"
        )


def _on_processes(watch: Watch, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    dist: Any = importlib.import_module("torch.distributed")
    # With a group of its own the program has its ranks: it starts these processes for something else.
    if (
        os.getpid() == watch.pid
        and watch.choice.form != "own"
        and watch.choice.distributed
        and not dist.is_initialized()
    ):
        _turn(watch, "own", "torch.multiprocessing.spawn")
    return original(*args, **kwargs)


def _turn(watch: Watch, form: Form, what: str) -> None:
    """Start again in another form, or say why not."""
    if watch.choice.mode == "same":
        raise SamestepError(f"--mode same: the script is a distributed program ({what}); {_MEND}")
    if watch.again:
        raise SamestepError(
            f"the script calls {what}, and has before shown itself to be another kind of program; samestep cannot tell "
            "how to run it: use torchrun, or python with the devices in CUDA_VISIBLE_DEVICES"
        )
    trained = LEDGER.region_calls + LEDGER.whole_calls > 0
    ask(watch.context, Request(form, f"{what}, {_script_line()}"), trained)


def _script_line() -> str:
    """The innermost line of the user's own that led here."""
    frame = inspect.currentframe()
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    library = (package, sys.prefix + os.sep, sys.base_prefix + os.sep, "<frozen ")
    while frame is not None:
        if not frame.f_code.co_filename.startswith(library):
            return f"{os.path.relpath(frame.f_code.co_filename)}, line {frame.f_lineno}"
        frame = frame.f_back
    return "in a library"


def _world_size(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """The world size that a call would get; None if nothing says it."""
    try:
        given = inspect.signature(original).bind(*args, **kwargs).arguments
    except TypeError:
        return None
    size = given.get("world_size", -1)
    if isinstance(size, int) and size > 0:
        return size
    method = given.get("init_method") or ""
    if "world_size=" in method:
        return int(method.partition("world_size=")[2].partition("&")[0])
    written = os.environ.get("WORLD_SIZE", "")
    return int(written) if written.isdigit() else None


def _pretend_torchrun() -> None:
    """One device: the group of one process that torchrun would give."""
    values = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**values, "MASTER_PORT": "0"}.items():
        os.environ.setdefault(name, value)
