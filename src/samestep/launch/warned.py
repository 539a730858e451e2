"""Warnings point at the script's line, as they would on one device.

A warning names the frame that called the function which warns. Between the script and torch there are frames of
Samestep's and of torch's dispatch to it, and the warning would name one of those, once for all lines of the script
instead of once for each.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch.overrides

_OURS = str(Path(__file__).parents[1]) + "/"
#: Functions of torch written in Python hand their call to a tensor's class through this module.
_DISPATCH = str(torch.overrides.__file__)


def install() -> None:
    """Let warnings that would name a line of Samestep's name the script's; calling it again changes nothing."""
    # Private, but called by both implementations of the module, also where a script records its warnings.
    show: Callable[[Any], None] | None = getattr(warnings, "_showwarnmsg", None)
    if show is None or getattr(show, "__module__", None) == __name__:
        return

    def show_at_script(message: warnings.WarningMessage) -> None:
        if not message.filename.startswith((_OURS, _DISPATCH)):
            show(message)
            return
        named, caller = _frames(message.filename)
        if named is None or caller is None:
            show(message)
            return
        # The line that was named must be able to warn again, for another line of the script.
        key = (str(message.message), message.category, message.lineno)
        named.f_globals.get("__warningregistry__", {}).pop(key, None)
        warnings.warn_explicit(
            message.message,
            message.category,
            caller.f_code.co_filename,
            caller.f_lineno,
            module=caller.f_globals.get("__name__"),
            registry=caller.f_globals.setdefault("__warningregistry__", {}),
            source=message.source,
        )

    warnings._showwarnmsg = show_at_script  # type: ignore[attr-defined]


def _frames(named_file: str) -> tuple[FrameType | None, FrameType | None]:
    """The innermost frame of the file that was named, and the script's that called Samestep by way of torch or not."""
    frame: FrameType | None = sys._getframe(1)
    named = None
    inside = False
    while frame is not None:
        name = frame.f_code.co_filename
        ours = name.startswith(_OURS) and name != __file__
        if named is None and name == named_file:
            named = frame
        if inside and not ours:
            # Dispatch is called by the function that the script called.
            caller = frame.f_back.f_back if name == _DISPATCH and frame.f_back is not None else frame
            while caller is not None and caller.f_code.co_filename.startswith((_OURS, _DISPATCH)):
                caller = caller.f_back  # a function of torch's that Samestep has replaced
            return named, caller
        inside = inside or ours
        frame = frame.f_back
    return named, None
