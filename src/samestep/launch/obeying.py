"""A script that chooses its devices by itself is obeyed: the run starts again, once, on those.

What counts as a choice: CUDA_VISIBLE_DEVICES set by the script before it uses CUDA, `torch.cuda.set_device(1)`,
`device_ids=[1, 3]`. `--devices` wins over the script, with a line that says so (`samestep.launch.device_hooks`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from samestep.devices import locks
from samestep.devices.selection import DeviceSelection
from samestep.devices.spec import resolve_for_script
from samestep.errors import SamestepError
from samestep.launch.device_choice import DeviceChoice, repeat
from samestep.launch.foresight import foresee
from samestep.launch.script import ScriptTarget
from samestep.launch.supervisor import Outcome
from samestep.notice import notice

#: A script may narrow its own choice: CUDA_VISIBLE_DEVICES first, `device_ids` behind that.
_RESTARTS = 2


def run_obeying(run: Callable[[DeviceSelection], Outcome], selection: DeviceSelection) -> Outcome:
    """Run on `selection`, and again on what the script chooses if that is something else."""
    for _ in range(_RESTARTS):
        outcome = run(selection)
        if outcome.devices is None:
            return outcome
        selection = choose_anew(selection, outcome.devices)
        repeat(outcome.devices.printed)
    outcome = run(selection)
    if outcome.devices is not None:
        raise SamestepError(
            f"the script chooses other devices each time, at last by {outcome.devices.who}; choose with --devices"
        )
    return outcome


def look_ahead(target: ScriptTarget, selection: DeviceSelection) -> DeviceSelection:
    """The devices that the script's source says it will choose, or `selection`; nothing has been started yet."""
    if selection.by_user:
        return selection
    choice = foresee(target)
    if choice is None or choice.visible == os.environ.get(selection.variable):
        return selection
    chosen = resolve_for_script(choice.visible, choice.places, choice.who, hold=False)
    if chosen is None or (chosen.kind, chosen.identities) == (selection.kind, selection.identities):
        return selection
    return choose_anew(selection, choice)


def choose_anew(selection: DeviceSelection, choice: DeviceChoice) -> DeviceSelection:
    """The devices of the script's choice, locked instead of those of `selection`, and the line that says so."""
    locks.release(selection.identities)
    chosen = resolve_for_script(choice.visible, choice.places, choice.who)
    if chosen is None:
        raise SamestepError(f"{choice.who} chooses GPUs, and there are none")
    notice(f"the script chooses its devices itself: {choice.who}; running on {chosen.describe()}")
    for text in chosen.notes:
        notice(text)
    return replace(chosen, notes=())  # they have been told
