"""Running a script in the form that was chosen, and again in another if the script shows itself to be of that kind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from samestep.devices.spec import DeviceSelection
from samestep.errors import SamestepError
from samestep.launch import trigger
from samestep.launch.context import Program, RankContext
from samestep.launch.distributed import run_as_rank, run_as_starter
from samestep.launch.local import run_ranks
from samestep.launch.mode import Choice, restarted
from samestep.launch.script import ScriptTarget
from samestep.launch.supervisor import Outcome
from samestep.notice import notice_once


def run_chosen(
    choice: Choice, target: ScriptTarget, selection: DeviceSelection, session: Callable[[], Program]
) -> Outcome:
    """Run the target on the chosen devices; `session` loads the program of a rank in the form `same`."""
    outcome = _attempt(choice, target, selection, session, again=False)
    if outcome.again is None:
        return outcome
    second = restarted(choice, outcome.again.form, outcome.again.what, selection)
    return _attempt(second, target, selection, session, again=True)


def _attempt(
    choice: Choice, target: ScriptTarget, selection: DeviceSelection, session: Callable[[], Program], again: bool
) -> Outcome:
    _refuse_what_cannot_be(choice, selection)
    if choice.said is not None:
        notice_once(choice.said)
    if choice.form == "same":
        program = partial(_watched, program=session(), choice=choice, again=again)
        # One process drives all XLA devices, by torch_xla's SPMD mode.
        return run_ranks(program, selection, count=1 if selection.kind == "xla" else None)
    if choice.form == "own":
        return run_ranks(partial(run_as_starter, target=target, choice=choice, again=again), selection, count=1)
    return run_ranks(partial(run_as_rank, target=target, choice=choice, again=again), selection, equal=True)


def _watched(context: RankContext, *, program: Program, choice: Choice, again: bool) -> None:
    trigger.install(context, choice, again)
    program(context)


def _refuse_what_cannot_be(choice: Choice, selection: DeviceSelection) -> None:
    if choice.form == "ranks" and selection.count > 1 and getattr(selection, "one_each", False):
        raise SamestepError(
            "a distributed program finds its device by LOCAL_RANK among all that it sees, and a process sees one MIG "
            "slice only; choose whole GPUs, or one slice"
        )
