"""`launch`: running a function on every device from code, also from a notebook."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from samestep.devices import locks
from samestep.devices.spec import Devices, DeviceSelection, resolve
from samestep.errors import SamestepError
from samestep.launch.context import RankContext
from samestep.launch.local import prepare, run_ranks
from samestep.launch.report import describe
from samestep.launch.signals import in_foreground
from samestep.notice import notice
from samestep.numerics import Numerics

Result = TypeVar("Result")

_SETUP, _CALL, _RESULT, _ERROR = "setup.json", "call.pickle", "result.pickle", "error.txt"
_PR_SET_PDEATHSIG = 1
_LOADER = """\
import json, sys
with open(sys.argv[1]) as file:
    setup = json.load(file)
sys.path[:], sys.argv[:] = setup["path"], setup["argv"]
from samestep.launch.api import serve
serve(setup)
"""


def launch(
    fn: Callable[..., Result],
    *args: Any,
    devices: Devices | None = None,
    batchnorm: str = "global",
    exact_random: bool = False,
    **kwargs: Any,
) -> Result:
    """Run `fn(*args, **kwargs)` on every rank, one per device, and return what the main rank returns.

    `devices` is written as for `samestep run --devices`, or as a list: `devices=[1, 3]`. The ranks are new processes:
    `fn` and its arguments are copied into them (so it does not matter if CUDA has been used here), and the result is
    copied back. If a rank fails, a `RuntimeError` carries its traceback. `batchnorm` and `exact_random` are those of
    `samestep run`.
    """
    numbers = Numerics(batchnorm, exact_random)
    selection = resolve(devices)
    try:
        return _launch(selection, fn, args, kwargs, numbers)
    finally:
        locks.release(selection.identities)


def _launch(selection: DeviceSelection, fn: Callable[..., Result], args: Any, kwargs: Any, numbers: Numerics) -> Result:
    for text in selection.notes:
        notice(text)
    with tempfile.TemporaryDirectory(prefix="samestep-launch-") as name:
        directory = Path(name)
        call = (fn, _source(fn), args, kwargs, numbers)
        (directory / _CALL).write_bytes(_packed(call, "the function and its arguments"))
        code = _wait(_start(directory, selection))
        result, error = directory / _RESULT, directory / _ERROR
        if code == 0 and result.exists():
            loaded: Result = pickle.loads(result.read_bytes())
            return loaded
        text = error.read_text(encoding="utf-8") if error.exists() else "the main rank ended without a result"
    raise RuntimeError(f"launch on {selection.describe()} failed (exit code {code}):\n{text.rstrip()}")


def serve(setup: dict[str, Any]) -> NoReturn:
    """Be the launcher's process of one `launch` call: a fresh one, from which ranks can be forked."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != setup["caller"]:
            sys.exit(128 + signal.SIGTERM)  # it died before the call
    directory = Path(setup["directory"])
    # Whatever `fn` says about devices: the caller has chosen them.
    selection = replace(DeviceSelection.from_json(setup["selection"]), chosen_by="user")
    try:
        prepare(selection)
        importlib.import_module("samestep.session")  # once for all ranks
        run_dir = directory / "run"
        outcome = run_ranks(partial(_call, directory=directory), selection, run_dir=run_dir, tell=False)
    except SamestepError as error:
        (directory / _ERROR).write_text(f"samestep: {error}\n", encoding="utf-8")
        sys.exit(2)
    if outcome.cause is not None:
        text = describe(outcome.cause, outcome.world_size, run_dir)
        (directory / _ERROR).write_text(text, encoding="utf-8")
    sys.exit(outcome.code)


def _call(context: RankContext, *, directory: Path) -> None:
    """What each rank does. The call is unpacked here, not before the fork: its arguments may be tensors on a GPU."""
    run_callable = importlib.import_module("samestep.session").run_callable
    fn, source, args, kwargs, numbers = pickle.loads((directory / _CALL).read_bytes())
    if source is not None and _source(fn) != source:  # cloudpickle forgets the file, and tracebacks need it
        fn.__code__ = fn.__code__.replace(co_filename=source)
    value = run_callable(context, fn, args, kwargs, numbers)
    if context.is_main:
        packed = _packed(value, "the result")
        (context.run_dir.parent / _RESULT).write_bytes(packed)


def _source(fn: object) -> str | None:
    """The file that a Python function is written in."""
    return fn.__code__.co_filename if isinstance(fn, types.FunctionType) else None


def _packed(value: object, what: str) -> bytes:
    try:
        cloudpickle = importlib.import_module("cloudpickle")  # not typed; also takes functions of __main__ and lambdas
    except ImportError as error:
        raise SamestepError("launch needs the package cloudpickle: pip install cloudpickle") from error
    try:
        packed: bytes = cloudpickle.dumps(value)
    except Exception as error:
        raise SamestepError(f"{what} cannot be copied to or from the ranks: {error}") from error
    return packed


def _start(directory: Path, selection: DeviceSelection) -> subprocess.Popen[bytes]:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    setup = {
        "caller": os.getpid(),
        "directory": str(directory),
        "path": [entry or os.getcwd() for entry in sys.path],
        "argv": sys.argv,
        "selection": selection.as_json(),
    }
    file = directory / _SETUP
    file.write_text(json.dumps(setup), encoding="utf-8")
    return subprocess.Popen([sys.executable, "-c", _LOADER, str(file)])


def _wait(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait()
    except KeyboardInterrupt:
        if not in_foreground():  # a terminal has sent it to that process as well
            process.send_signal(signal.SIGINT)
        process.wait()
        raise
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
