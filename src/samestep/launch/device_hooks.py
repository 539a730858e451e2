"""The functions by which a script chooses devices, watched in each rank; and what they tell, the same on every rank.

Each rank sees its devices in an order of its own, so that the script's index is the rank's device. Questions about a
device (`get_device_name(1)`) are answered for the device that main has at that index, for all ranks alike.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.parallel
from torch import nn

from samestep.devices.affinity import cpus_before
from samestep.devices.selection import DeviceSelection
from samestep.devices.spec import resolve_for_script
from samestep.devices.visibility import VARIABLE
from samestep.launch.context import RankContext
from samestep.launch.device_choice import DeviceChoice, ask, hush, speak
from samestep.ledger import LEDGER
from samestep.notice import notice_once

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep

Where = Callable[[], str]


@dataclass(frozen=True)
class Watch:
    """What the hooks need to know of the run. `has_read` says whether the script has read its input."""

    context: RankContext
    has_read: Callable[[], bool]
    pid: int

    @property
    def selection(self) -> DeviceSelection:
        """The devices of the run."""
        return self.context.selection


def install(context: RankContext, has_read: Callable[[], bool]) -> None:
    """Watch this rank's script, from before its first line."""
    watch = Watch(context, has_read, os.getpid())
    _show_variable(context.selection)
    _watch_environment(watch, _watch_driver())
    _hide_affinity()
    if context.selection.kind == "cuda":
        _watch_set_device(watch)
        _watch_device_ids(watch)
        _answer_for_main(context.selection, context.rank)
    hush(context)


def install_for_distributed(context: RankContext) -> None:
    """In a process of a program that is distributed by itself: it chooses among what it sees, and `--devices` says what
    that is, also over CUDA_VISIBLE_DEVICES set in the script."""
    _show_variable(context.selection)
    if context.selection.by_user and context.selection.visible:
        _watch_environment(Watch(context, lambda: False, os.getpid()), lambda: False)


def finish() -> None:
    """At the end of the script: show what was held back, if it never came to the choice that it made before."""
    speak(_flush, lost=True)


# ---------------------------------------------------------------------- CUDA_VISIBLE_DEVICES
def _show_variable(selection: DeviceSelection) -> None:
    """Let the script read what it would read in one process, while CUDA and child programs read the rank's order."""
    if not selection.visible:
        return
    data: Any = getattr(os.environ, "_data")  # noqa: B009 (only there can the two differ)
    key = os.environ.encodekey(selection.variable)
    if selection.shown is None:
        data.pop(key, None)
    else:
        data[key] = os.environ.encodevalue(selection.shown)


def _watch_driver() -> Callable[[], bool]:
    """Whether the script has made the driver read the variable, after which it has no effect any more."""
    original = torch.cuda.is_available
    read: list[bool] = []

    @functools.wraps(original)
    def is_available() -> bool:
        if os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK") != "1":
            read.append(True)
        return original()

    torch.cuda.is_available = is_available
    return lambda: bool(read) or torch.cuda.is_initialized()


def _watch_environment(watch: Watch, driver_has_read: Callable[[], bool]) -> None:
    # ROCm listens to CUDA's variable as well.
    variables = {watch.selection.variable, VARIABLE}
    # What `os.environ` itself calls, so that every way to set a variable comes here.
    original_put, original_unset = os.putenv, os.unsetenv

    @functools.wraps(original_put)
    def putenv(name: Any, value: Any, /) -> None:
        ours = os.fsdecode(name) in variables and os.getpid() == watch.pid
        if not ours or _on_visible(watch, os.fsdecode(name), os.fsdecode(value), driver_has_read()):
            original_put(name, value)

    @functools.wraps(original_unset)
    def unsetenv(name: Any, /) -> None:
        if os.fsdecode(name) not in variables or os.getpid() != watch.pid or not watch.selection.visible:
            original_unset(name)

    os.putenv, os.unsetenv = putenv, unsetenv


def _on_visible(watch: Watch, name: str, value: str, too_late: bool) -> bool:
    """The script sets the variable to `value`; whether that may reach CUDA."""
    selection = watch.selection
    who = f"os.environ[{name!r}] = {value!r} ({script_place()})"
    reaches = not selection.visible
    if value == selection.shown:
        speak(_flush)
    elif selection.by_user:
        if selection.visible and watch.context.is_main:
            notice_once(f"{who} is ignored: this run was started on {selection.describe()}")
    elif too_late:
        if selection.visible:
            notice_once(f"{who} comes after CUDA was used, and has no effect any more; set it before, or use --devices")
    else:
        chosen = resolve_for_script(value, None, who, hold=False)
        if chosen is not None and (chosen.kind, chosen.identities) != (selection.kind, selection.identities):
            ask(watch.context, DeviceChoice(value, None, who), _flush, watch.has_read())
        speak(_flush)
    return reaches


# ---------------------------------------------------------------------- set_device, device_ids
def _watch_set_device(watch: Watch) -> None:
    torch.cuda.set_device = _watched(watch, torch.cuda.set_device, "torch.cuda.set_device")
    accelerator: Any = getattr(torch, "accelerator", None)  # since torch 2.6
    for name in ("set_device_index", "set_device_idx"):
        if hasattr(accelerator, name):
            setattr(accelerator, name, _watched(watch, getattr(accelerator, name), f"torch.accelerator.{name}"))


def _watched(watch: Watch, original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def set_device(device: Any) -> Any:
        index = _index(device)
        if index is not None and os.getpid() == watch.pid:
            place = _on_device(watch, name, index)
            if place != index:
                device = place
        return original(device)

    return set_device


def _on_device(watch: Watch, name: str, index: int) -> int:
    """The script makes one device its own; the index to use."""
    selection = watch.selection
    who = f"{name}({index}) ({script_place()})"
    if index == selection.home:
        if selection.chosen_by == "script":
            speak(_flush)
        return index
    if selection.by_user or selection.one_each:
        count = 1 if selection.one_each else len(selection.visible)
        if index < count:
            return index
        notice_once(f"{who} is taken for index {index % count}: this run was started on {selection.describe()}")
        return index % count
    if index and index < len(selection.visible) and not _trained():
        _ask(watch, (index,), who)
    return index


def _watch_device_ids(watch: Watch) -> None:
    original = nn.DataParallel.__init__

    @functools.wraps(original)
    def init(self: Any, module: Any, device_ids: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_ids is not None and os.getpid() == watch.pid:
            device_ids = _on_ids(watch, device_ids)
        original(self, module, device_ids, *args, **kwargs)

    nn.DataParallel.__init__ = init  # type: ignore[method-assign]
    forward = at_home(nn.DataParallel.forward, not watch.selection.by_user, torch.cuda.device)
    nn.DataParallel.forward = forward  # type: ignore[method-assign]
    function = nn.parallel.data_parallel

    @functools.wraps(function)
    def data_parallel(module: Any, inputs: Any, device_ids: Any = None, *args: Any, **kwargs: Any) -> Any:
        if device_ids is not None and os.getpid() == watch.pid:
            device_ids = _on_ids(watch, device_ids)
        return function(module, inputs, device_ids, *args, **kwargs)

    nn.parallel.data_parallel = data_parallel


def at_home(original: Callable[..., Any], refuse: bool, current: Callable[[int], Any]) -> Callable[..., Any]:
    """`DataParallel.forward` on the model's GPU, as torch runs it: what it makes by `.cuda()` is made there.

    `refuse`: a model that is not on the first of its `device_ids` is refused, as torch refuses it; otherwise all ranks
    would share a GPU that none of them has been given. `current` makes a device the current one for a while.
    """

    @functools.wraps(original)
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        ids = getattr(self, "device_ids", None) or []
        tensor = next(self.module.parameters(), None) if ids else None
        if tensor is None or not tensor.is_cuda:
            return original(self, *inputs, **kwargs)
        if refuse and tensor.device.index != ids[0]:
            raise RuntimeError(
                f"module must have its parameters and buffers on device cuda:{ids[0]} (device_ids[0]) but found one of "
                f"them on device: {tensor.device}"
            )
        with current(tensor.device.index):
            return original(self, *inputs, **kwargs)

    return forward


def _on_ids(watch: Watch, device_ids: Any) -> Any:
    """The script gives a list of devices; the list to use."""
    selection = watch.selection
    ids = [_index(each) for each in device_ids]
    chosen = [each for each in ids if each is not None]
    if not ids or len(chosen) < len(ids):
        return device_ids
    ours = list(selection.places) or list(range(selection.count))
    who = f"device_ids={chosen} ({script_place()})"
    if chosen == ours:
        if selection.chosen_by == "script":
            speak(_flush)
        return device_ids
    if selection.by_user or selection.one_each:
        notice_once(f"{who} is ignored: this run was started on {selection.describe()}")
        return ours[: len(chosen)] if len(chosen) <= len(ours) else ours
    if max(chosen) < len(selection.visible) and min(chosen) >= 0 and not _trained():
        _ask(watch, tuple(chosen), who)
    return device_ids


def _trained() -> bool:
    return bool(LEDGER.region_calls or LEDGER.whole_calls)


def _ask(watch: Watch, places: tuple[int, ...], who: str) -> None:
    """Start again on some of the devices that the script sees: those behind its own choice, if it has made one."""
    visible = watch.selection.shown if watch.selection.chosen_by == "script" else None
    ask(watch.context, DeviceChoice(visible, places, who), _flush, watch.has_read())


def _index(device: Any) -> int | None:
    """The index that a device stands for; None if it names none (`cuda`, the current one)."""
    if isinstance(device, bool):
        return None
    if isinstance(device, int):
        return device if device >= 0 else None
    try:
        found = torch.device(device)
    except (TypeError, RuntimeError):
        return None
    return found.index if found.type == "cuda" else None


# ---------------------------------------------------------------------- the same answers on every rank
def _answer_for_main(selection: DeviceSelection, rank: int) -> None:
    seen = selection.seen_by(rank)
    if selection.one_each or seen == selection.visible:
        return
    at = {place: seen.index(token) for place, token in enumerate(selection.visible)}
    # `get_device_name` and `get_device_capability` ask this one.
    torch.cuda.get_device_properties = answering(torch.cuda.get_device_properties, at, torch.cuda.current_device)


def answering(original: Any, at: dict[int, int], current: Callable[[], int]) -> Any:
    """A question about a device, asked of the one that main has at the index: `at` says where this rank has it."""

    @functools.wraps(original)
    def answer(device: Any = None) -> Any:
        index = current() if device is None else _index(device)
        if index is None:  # `cuda` alone is the current device
            index = current()
        return original(at.get(index, index))

    return answer


def _hide_affinity() -> None:
    """A rank near its GPU has fewer cores than another; the script counts those that the run has."""
    before = cpus_before()
    if before is None:
        return
    original, pid = os.sched_getaffinity, os.getpid()

    @functools.wraps(original)
    def sched_getaffinity(process: int, /) -> set[int]:
        return set(before) if process in (0, pid) and os.getpid() == pid else original(process)

    os.sched_getaffinity = sched_getaffinity


# ---------------------------------------------------------------------- where the script is
def script_place() -> str:
    """The script's line that is running: `train.py, line 7`."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_OWN, _TORCH, "<frozen")) and not name.endswith(os.sep + "os.py"):
            break
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno}"


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
