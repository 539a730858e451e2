"""How a script is run: as one program on every device, or as the distributed program that it already is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from samestep.devices.spec import DeviceSelection
from samestep.errors import SamestepError
from samestep.launch.reach import Finding, find_signs
from samestep.launch.script import ScriptTarget
from samestep.launch.sources import read_sources

#: `same`: one program, its batches divided. `ranks`: one process per device with torchrun's variables. `own`: one
#: process that sees all devices and starts the others by itself.
Form = Literal["same", "ranks", "own"]

MODES = ("auto", "same", "distributed")


@dataclass(frozen=True)
class Choice:
    """The form of a run, why, and whether the user has asked for it.

    `said` is the line for the user (None: the ordinary case, nothing to say); `distributed` tells whether the sources
    name a process group at all, so that processes started by the script are probably ranks.
    """

    form: Form
    said: str | None
    mode: str = "auto"
    distributed: bool = False


def check_mode(mode: str) -> str:
    """Refuse a mode that there is not."""
    if mode not in MODES:
        raise SamestepError(f"--mode {mode!r}: the modes are {', '.join(MODES)}")
    return mode


def choose(target: ScriptTarget, mode: str, selection: DeviceSelection) -> Choice:
    """The form in which to run a script, from its source and what the user asked for."""
    signs = find_signs(read_sources(target), (selection.kind, selection.count))
    certain = next((sign for sign in signs if sign.certain), None)
    known = bool(signs)
    name = target.module or os.path.basename(target.path or "")
    if mode == "same":
        return Choice("same", None, mode, known)
    if mode == "distributed":
        chosen = certain or _first(signs, "group") or _first(signs, "processes")
        form = _form(chosen)
        return Choice(form, f"{name} runs as a distributed program, as asked: {_how(form, selection)}", mode, known)
    if certain is not None:
        form = _form(certain)
        said = f"{name} is a distributed program ({certain.what}, {certain.place}): {_how(form, selection)}"
        return Choice(form, said, mode, known)
    if signs:
        said = (
            f"{name} can also run as a distributed program ({signs[0].what}, {signs[0].place}); "
            "it runs as one program with the numbers of one device (--mode distributed chooses the other)"
        )
        return Choice("same", said, mode, known)
    return Choice("same", None, mode, known)


def restarted(choice: Choice, form: Form, what: str, selection: DeviceSelection) -> Choice:
    """The choice after the script has shown, by what it did, that it is another kind of program."""
    said = f"the script is a distributed program ({what}); started again: {_how(form, selection)}"
    return Choice(form, said, choice.mode, choice.distributed)


def _first(signs: list[Finding], kind: str) -> Finding | None:
    return next((sign for sign in signs if sign.kind == kind), None)


def _form(sign: Finding | None) -> Form:
    return "own" if sign is not None and sign.kind == "processes" else "ranks"


def _how(form: Form, selection: DeviceSelection) -> str:
    if form == "own":
        where = "" if selection.kind == "cpu" else f" and sees {selection.describe()}"
        return f"one process, which starts the others itself{where}"
    return f"{selection.count} process{'' if selection.count == 1 else 'es'} as torchrun starts them, one per device"
