"""What a forked process does: become a rank, run the program, and end as a Python program ends."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import ctypes
import io
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NoReturn

from samestep import waiting
from samestep.devices.affinity import near_cpus, pin
from samestep.devices.environment import apply_environment, rank_environment
from samestep.errors import SamestepError
from samestep.launch import traces
from samestep.launch.brief import brief_text
from samestep.launch.channel import GO, PRINT, Failure, RankEnd
from samestep.launch.context import Closable, Program, RankContext
from samestep.launch.last_words import let_go

_PR_SET_PDEATHSIG = 1
_BROKEN = 70  # EX_SOFTWARE: the launcher's own code failed in the rank
_FLUSH_FAILED = 120  # what Python exits with then


@dataclass(frozen=True)
class Birth:
    """What a rank takes over from the launcher that forked it."""

    launcher: int
    line: RankEnd
    echo: socket.socket
    threads: int | None
    foreign: tuple[Closable, ...]
    lifeline: int
    restore_signals: Callable[[], None]


@dataclass(frozen=True)
class _Ending:
    """How the program ended; `error` is what is to be shown, if anything."""

    code: int
    failure: Failure | None = None
    error: BaseException | None = None


def become_rank(program: Program, context: RankContext, birth: Birth) -> NoReturn:
    """Run the program as one rank in this freshly forked process; never returns."""
    code = _BROKEN
    try:
        code = _live(program, context, birth)
    except BaseException:  # only a defect of ours comes here
        traceback.print_exc()
        _flush()
    finally:
        os._exit(code & 0xFF)


def _live(program: Program, context: RankContext, birth: Birth) -> int:
    _die_with(birth)
    for each in birth.foreign:
        each.close()
    # A distributed program's ranks all see the same devices, and choose theirs by LOCAL_RANK.
    apply_environment(rank_environment(context.selection, 0 if context.equal else context.rank))
    if context.world_size == context.selection.count:  # else this process starts the ranks of all devices itself
        pin(near_cpus(context.selection)[context.rank])
    if not context.is_main:
        _take_off_terminal(context)
    if birth.threads is not None and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(birth.threads)
    waiting.end_run = partial(_end_stuck, context, birth.line)
    try:
        ending = _run(program, context, birth)
        _hold_interrupts(True)
    except KeyboardInterrupt as error:  # it came when the program had just ended
        _hold_interrupts(True)
        ending = _error_ending(error, context)
    if ending.failure is not None:
        birth.line.send_failure(ending.failure)
    _tell(context, ending, birth.line)
    code, mine = ending.code, context.is_main or context.equal
    del ending  # with it the frames of an exception
    code = _finish(code, mine)
    birth.line.send_done()
    while birth.line.answer() != GO:
        pass
    return code


def _end_stuck(context: RankContext, line: RankEnd, text: str) -> None:
    """End the run from another thread, since the script's waits for ever."""
    text = f"samestep: {text}\n"
    line.send_failure(Failure(context.rank, time.monotonic(), "exit", 1, "SystemExit", text))
    traces.write_error(text)
    _flush()
    os._exit(1)


def _die_with(birth: Birth) -> None:
    """See to it that a launcher killed outright takes this rank with it."""
    if sys.platform == "linux":
        os.close(birth.lifeline)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != birth.launcher:
            os._exit(128 + signal.SIGKILL)  # it died before the call
        return

    def watch() -> None:
        os.read(birth.lifeline, 1)  # returns when the launcher, which alone holds the other end, is gone
        os.kill(os.getpid(), signal.SIGKILL)

    _thread.start_new_thread(watch, ())  # not a threading.Thread: the script does not see it in its lists


def _take_off_terminal(context: RankContext) -> None:
    """Nothing on stdin; stdout and stderr into the rank's log, for this process and those it starts.

    An equal rank keeps its stdout and stderr.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    source = os.open(os.devnull, os.O_RDONLY)
    os.dup2(source, 0)
    os.close(source)
    _replace_stream("stdin", _text_stream(0, "r", sys.stdin))
    if context.equal:
        return
    for number, name in ((1, "stdout"), (2, "stderr")):
        log = context.log("stdout" if number == 1 else "stderr")
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(target, number)
        os.close(target)
        _replace_stream(name, _text_stream(number, "w", getattr(sys, name)))


def _replace_stream(name: str, stream: io.TextIOWrapper) -> None:
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def _text_stream(number: int, mode: Literal["r", "w"], like: object) -> io.TextIOWrapper:
    encoding = getattr(like, "encoding", None)
    errors = getattr(like, "errors", None)
    return open(
        number,
        mode,
        buffering=1 if mode == "w" else -1,  # line by line, so that the log is complete when the rank is killed
        encoding=encoding if isinstance(encoding, str) else "utf-8",
        errors=errors if isinstance(errors, str) else "backslashreplace",
        closefd=False,
    )


def _run(program: Program, context: RankContext, birth: Birth) -> _Ending:
    try:
        signal.set_wakeup_fd(birth.echo.fileno(), warn_on_full_buffer=False)
        birth.restore_signals()  # from here on a Ctrl-C is the script's
        program(context)
    except SystemExit as end:
        return _exit_ending(end, context.rank)
    except BaseException as error:
        return _error_ending(error, context)
    return _Ending(0)


def _hold_interrupts(held: bool) -> None:
    """Keep Ctrl-C out of the talk with the launcher, which knows of it anyway."""
    signal.pthread_sigmask(signal.SIG_BLOCK if held else signal.SIG_UNBLOCK, {signal.SIGINT})


def _exit_ending(end: SystemExit, rank: int) -> _Ending:
    """What Python makes of a SystemExit: None is 0, a number is the exit code, anything else is shown and is 1."""
    if end.code is None or isinstance(end.code, int):
        code, text = (end.code or 0) & 0xFF, ""
    else:
        code, text = 1, f"{end.code}\n"
    if code == 0:
        return _Ending(0)
    lost = traces.follows_from_lost_peer(end)
    failure = Failure(rank, time.monotonic(), "exit", code, "SystemExit", text, lost)
    return _Ending(code, failure, end if text else None)


def _error_ending(error: BaseException, context: RankContext) -> _Ending:
    lost = traces.follows_from_lost_peer(error)
    traces.cut(error)
    interrupted = isinstance(error, KeyboardInterrupt)
    code = 2 if isinstance(error, SamestepError) else 128 + signal.SIGINT if interrupted else 1
    failure = Failure(
        context.rank,
        time.monotonic(),
        "exception",
        code,
        exception=type(error).__name__,
        text=brief_text(error) if context.equal else traces.as_text(error),
        peer_lost=lost,
        signal=int(signal.SIGINT) if interrupted else None,
    )
    return _Ending(code, failure, error)


def _tell(context: RankContext, ending: _Ending, line: RankEnd) -> None:
    """Show the failure where that is this rank's part.

    Main asks the launcher, which knows whether another rank's failure is the cause; on the others (and on main, where
    the launcher shows the failure of an equal rank) only a script's own `sys.excepthook` is called.
    """
    if ending.failure is None:
        return
    wanted = context.is_main and line.answer() == PRINT
    if not context.is_main or (context.equal and not wanted and not ending.failure.peer_lost):
        wanted = ending.failure.kind == "exception" and _has_own_hook()
    if not wanted or ending.error is None:
        return
    if ending.failure.kind == "exit":
        traces.write_error(ending.failure.text)
    else:
        traces.show(ending.error)


def _has_own_hook() -> bool:
    """Whether the script has set `sys.excepthook`; torch's, which puts the rank before each line, is none."""
    module = getattr(sys.excepthook, "__module__", None) or ""
    return sys.excepthook is not sys.__excepthook__ and not module.startswith("torch.distributed")


def _finish(code: int, seen: bool) -> int:
    """What the interpreter does after the script: wait for threads, call the exit functions, write out the buffers.

    `seen`: what this rank writes to files is kept.
    """
    steps: list[Callable[[], object]] = [
        getattr(threading, "_shutdown"),  # noqa: B009 (private, so not in the type stubs)
        getattr(atexit, "_run_exitfuncs"),  # noqa: B009
    ]
    if seen:
        steps.append(let_go)
    for step in steps:
        try:
            _hold_interrupts(False)  # as under plain Python, these can be interrupted
            step()
        except KeyboardInterrupt:
            code = 128 + signal.SIGINT
        except BaseException:
            traceback.print_exc()
        finally:
            _hold_interrupts(True)
    return code if _flush() else _FLUSH_FAILED


def _flush() -> bool:
    """Write out stdout and stderr; says on stderr, as Python does, if stdout would not take it."""
    written = True
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except Exception as error:
        written = False
        with contextlib.suppress(Exception):
            print(f"Exception ignored in: {sys.stdout!r}\n{type(error).__name__}: {error}", file=sys.stderr)
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    return written
