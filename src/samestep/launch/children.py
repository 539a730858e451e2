"""The ranks that a script starts by itself: their failures told as Samestep tells its own, and none left behind.

Every process that the script starts through `multiprocessing` runs its function inside `Reported`, which writes down
how it failed. When the script ends, the first of these failures is shown instead of the pile that its end has caused.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import multiprocessing
import multiprocessing.process
import multiprocessing.util
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.launch import processes, traces
from samestep.launch.brief import brief_text

GRACE_S = 10.0  # for a script to deal with a failed rank by itself, as torch.multiprocessing.spawn does
LAST_S = 5.0  # for the processes of a script that has ended well to end, too
_FOLLOWS = ("ProcessRaisedException", "ProcessExitedException", "ChildFailedError")
_NOT_RANKS = ("torch.utils.data.", "torch.multiprocessing.", "torch.distributed.elastic.", "multiprocessing.")


@dataclass(frozen=True)
class Report:
    """How a process of the script's failed: a time, its name, exit code and traceback."""

    time: float
    who: str
    code: int
    text: str
    peer_lost: bool


class Reported:
    """Wraps the function of a started process; can be pickled, as `spawn` demands.

    `loud`: multiprocessing would print the traceback of an exception that comes out, so none is let out.
    """

    def __init__(self, fn: Callable[..., Any], folder: str, who: str, loud: bool) -> None:
        self.fn = fn
        self.folder = folder
        self.who = who
        self.loud = loud

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        who = f"process {args[0]}" if not self.who and args else self.who
        try:
            result = self.fn(*args, **kwargs)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            traces.cut(error)
            lost = traces.follows_from_lost_peer(error)
            report = Report(time.monotonic(), who, 1, brief_text(error), lost)
            _write(Path(self.folder), report)
            _leave_group("gloo")
            if self.loud:
                sys.exit(1)
            raise
        _leave_group()
        return result


@contextlib.contextmanager
def reported(run_dir: Path) -> Iterator[None]:
    """Run a script that starts ranks by itself; raises SystemExit with a failed rank's code after telling of it."""
    folder = run_dir / "children"
    folder.mkdir(exist_ok=True)
    _watch_starts(str(folder))
    atexit.register(_see_off)
    guard = _Guard(folder)
    guard.start()
    try:
        yield
    except BaseException as error:
        report = _first(folder)
        if report is None or not _follows(error):
            raise
        guard.stop()
        _tell(report)
        raise SystemExit(report.code) from None
    guard.stop()
    report = _first(folder)
    if report is not None:
        _tell(report)
        raise SystemExit(report.code)


def _watch_starts(folder: str) -> None:
    torch_spawn = importlib.import_module("torch.multiprocessing.spawn")
    start_processes = torch_spawn.start_processes

    def start_reported(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return start_processes(Reported(fn, folder, "", loud=False), *args, **kwargs)

    for module in (torch_spawn, importlib.import_module("torch.multiprocessing")):
        setattr(module, "start_processes", start_reported)  # noqa: B010 (mypy knows no such attribute of a module)
    base: Any = multiprocessing.process.BaseProcess
    start = base.start

    def start_process(self: Any) -> None:
        target = self._target
        if target is not None and not _module_of(target).startswith(_NOT_RANKS):
            self._target = Reported(target, folder, self.name, loud=True)
        start(self)

    base.start = start_process


def _module_of(target: Any) -> str:
    return str(getattr(target, "__module__", ""))


def _follows(error: BaseException) -> bool:
    """Whether an exception of the starting process is only the news that a started one has failed."""
    return isinstance(error, SystemExit) or any(type(each).__name__ in _FOLLOWS for each in traces.chain(error))


def _has_group() -> bool:
    dist: Any = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()


def _leave_group(only: str | None = None) -> None:
    """What a script may have forgotten: a process group that is still there at exit can abort the process (SIGABRT).

    After a failure only Gloo's (`only`) is left this way: NCCL would first wait for collectives that never end. A
    forked process ends without clean-up by the interpreter, so there is nothing to help.
    """
    if _has_group() and type(multiprocessing.current_process()).__name__ != "ForkProcess":
        dist: Any = importlib.import_module("torch.distributed")
        with contextlib.suppress(Exception):
            if only in (None, dist.get_backend()):
                dist.destroy_process_group()


def _write(folder: Path, report: Report) -> None:
    with contextlib.suppress(OSError):
        part = folder / f"{os.getpid()}.part"
        part.write_text(json.dumps(report.__dict__), encoding="utf-8")
        part.replace(folder / f"{os.getpid()}.json")


def _first(folder: Path) -> Report | None:
    """The failure that came first, not counting those that came from another's."""
    reports = [Report(**json.loads(path.read_text(encoding="utf-8"))) for path in folder.glob("*.json")]
    return min(reports, key=lambda report: (report.peer_lost, report.time), default=None)


def _tell(report: Report) -> None:
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    who = f"samestep: {report.who}, which the script had started, failed (exit code {report.code}):\n"
    traces.write_error(who + report.text)


def _see_off() -> None:
    """Wait a little for the ranks that still run, then end them: a rank that outlives the script is of no use."""
    getattr(multiprocessing.util, "_exit_function")()  # noqa: B009 (private) (the workers that end with this process)
    psutil: Any = importlib.import_module("psutil")
    ranks = [each for each in processes.descendants() if _is_python(each)]
    _, late = psutil.wait_procs(ranks, timeout=LAST_S)
    processes.kill(late)


def _is_python(process: Any) -> bool:
    psutil: Any = importlib.import_module("psutil")
    try:
        return bool(process.cmdline()[:1] == [sys.executable] and "resource_tracker" not in " ".join(process.cmdline()))
    except psutil.Error:
        return False


class _Guard(threading.Thread):
    """Ends a script that goes on waiting after one of its ranks has failed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True, name="samestep-guard")
        self._folder = folder
        self._over = threading.Event()

    def stop(self) -> None:
        self._over.set()

    def run(self) -> None:
        while not self._over.wait(0.5):
            report = _first(self._folder)
            if report is None or time.monotonic() < report.time + GRACE_S or self._over.is_set():
                continue
            _tell(report)
            processes.kill(processes.descendants())
            os._exit(report.code)
