"""Which GPUs are free, and waiting until some are."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from samestep.devices import locks
from samestep.devices.gpus import gib
from samestep.devices.grammar import Free
from samestep.devices.inventory import VisibleGpu
from samestep.errors import SamestepError
from samestep.notice import notice

#: Without a condition of the user's, a GPU is free if it has no more than this in use (a desktop, an idle context) …
IDLE_BYTES, IDLE_SHARE = 1 << 30, 0.05
#: … and is no busier than this, in per cent.
IDLE_UTILISATION = 10

_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _SAY_AGAIN_S = 0.25, 5.0, 300.0


@dataclass(frozen=True)
class Judged:
    """A GPU, and why it is not free (None: it is)."""

    gpu: VisibleGpu
    why_not: str | None


def judge(gpus: Sequence[VisibleGpu], request: Free, look: bool = True) -> list[Judged]:
    """Which GPUs meet the conditions; nothing is locked. `look`: also whether another run has locked them."""
    return [Judged(gpu, _busy(gpu, request) or (_locked(gpu) if look else None)) for gpu in gpus]


def choose(
    request: Free,
    candidates: Callable[[], list[VisibleGpu]],
    origin: str,
    *,
    wait: float | None = None,
    hold: bool = True,
) -> list[VisibleGpu]:
    """Free GPUs, as many as asked for, locked for this run; waits up to `wait` seconds for them.

    `candidates` looks anew at what there is. Raises `SamestepError` if there are too few, saying what is wrong with
    each of the others.
    """
    progress = _Progress(request, wait)
    try:
        return _wait_for(request, candidates, origin, wait, hold, progress)
    finally:
        progress.end()  # also if somebody is tired of waiting


def _wait_for(
    request: Free,
    candidates: Callable[[], list[VisibleGpu]],
    origin: str,
    wait: float | None,
    hold: bool,
    progress: _Progress,
) -> list[VisibleGpu]:
    began = time.monotonic()
    pause = _FIRST_PAUSE_S
    needed = request.count if request.count is not None else 1
    while True:
        judged = judge(candidates(), request, look=not hold)
        if needed > len(judged):
            raise SamestepError(f"{origin}: {needed} GPUs are asked for, and there are {len(judged)}")
        taken, judged = _take(_preferred(judged, needed), judged, request.count, hold)
        if len(taken) >= needed:
            return sorted(taken, key=lambda gpu: (gpu.number, gpu.slice.index if gpu.slice else 0))
        if hold:
            locks.release([gpu.identity for gpu in taken])
        elapsed = time.monotonic() - began
        if wait is None or elapsed >= wait:
            raise SamestepError(f"{origin}: {_too_few(judged, needed, elapsed if wait else None)}")
        progress.show(sum(each.why_not is None for each in judged), elapsed)
        # Not in step with others who wait, or all would reach for the same GPU at the same moment.
        time.sleep(min(pause * random.uniform(0.7, 1.3), max(0.0, wait - elapsed)))
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _take(
    wanted: list[VisibleGpu], judged: list[Judged], count: int | None, hold: bool
) -> tuple[list[VisibleGpu], list[Judged]]:
    """Lock the wanted GPUs in this order until there are enough; another run may have been faster."""
    taken: list[VisibleGpu] = []
    lost: dict[str, str] = {}
    for gpu in wanted:
        if count is not None and len(taken) == count:
            break
        holder = locks.take(gpu.identity) if hold else None
        if holder is None:
            taken.append(gpu)
        else:
            lost[gpu.identity] = f"held by {holder}"
    return taken, [Judged(each.gpu, lost.get(each.gpu.identity, each.why_not)) for each in judged]


def _preferred(judged: list[Judged], needed: int) -> list[VisibleGpu]:
    """The free GPUs, the best first: those of one model if there are enough of it, then those with more memory free."""
    free = [each.gpu for each in judged if each.why_not is None]
    models = {gpu.name: sum(other.name == gpu.name for other in free) for gpu in free}
    largest = {name: max(_unused(gpu) for gpu in free if gpu.name == name) for name in models}
    return sorted(free, key=lambda gpu: (models[gpu.name] < needed, -largest[gpu.name], -_unused(gpu), gpu.number))


def _memory(gpu: VisibleGpu) -> tuple[int, int]:
    """Bytes in use and in all."""
    facts = gpu.slice or gpu.gpu
    return (facts.memory_used, facts.memory_total) if facts is not None else (0, 0)


def _unused(gpu: VisibleGpu) -> int:
    used, total = _memory(gpu)
    return total - used


def _busy(gpu: VisibleGpu, request: Free) -> str | None:
    used, total = _memory(gpu)
    limit = IDLE_UTILISATION if request.utilisation is None else request.utilisation
    utilisation = gpu.gpu.utilisation if gpu.gpu is not None else None
    if request.memory is not None:
        if total - used < request.memory:
            return f"{gib(total - used)} of {gib(total)} unused" + _by_whom(gpu)
    elif used > max(IDLE_BYTES, IDLE_SHARE * total):
        return f"{gib(used)} of {gib(total)} in use" + _by_whom(gpu)
    if utilisation is not None and utilisation > limit:
        return f"{utilisation} % busy" + _by_whom(gpu)
    return None


def _by_whom(gpu: VisibleGpu) -> str:
    processes = gpu.gpu.processes if gpu.gpu is not None and gpu.slice is None else None
    return f" by {', '.join(each.describe() for each in processes)}" if processes else ""


def _locked(gpu: VisibleGpu) -> str | None:
    holder = locks.holder(gpu.identity)
    return None if holder is None else f"held by {holder}"


def _too_few(judged: list[Judged], needed: int, waited: float | None) -> str:
    free = sum(each.why_not is None for each in judged)
    busy = "; ".join(
        f"{each.gpu.number}{'' if each.gpu.slice is None else f':{each.gpu.slice.index}'}: {each.why_not}"
        for each in judged
        if each.why_not is not None
    )
    found = f"{free} of {len(judged)} GPUs {'is' if free == 1 else 'are'} free"
    after = f" after {_clock(waited)}" if waited is not None else ""
    hint = "" if waited is not None else "; --wait waits for them"
    return f"{found}{after}, and {needed} {'is' if needed == 1 else 'are'} asked for ({busy}){hint}"


class _Progress:
    """One line that is rewritten on a terminal; elsewhere a line at the start and every few minutes."""

    def __init__(self, request: Free, limit: float | None) -> None:
        self._what = f"{request.count} free GPUs" if request.count not in (None, 1) else "a free GPU"
        self._limit = limit
        self._next = 0.0
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._shown = False

    def show(self, free: int, elapsed: float) -> None:
        limit = f" of {_clock(self._limit)}" if self._limit is not None and self._limit != float("inf") else ""
        text = f"waiting for {self._what} ({free} {'is' if free == 1 else 'are'} free; {_clock(elapsed)}{limit})"
        if self._terminal:
            sys.stderr.write(f"\r\x1b[Ksamestep: {text}")
            sys.stderr.flush()
            self._shown = True
        elif elapsed >= self._next:
            notice(text)
            self._next = elapsed + _SAY_AGAIN_S

    def end(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _clock(seconds: float) -> str:
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
