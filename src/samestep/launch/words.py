"""Words of the command line that stand behind the script, and so are the script's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from samestep.launch.script import ScriptTarget
from samestep.notice import notice


def say_what_is_the_scripts(target: ScriptTarget, ours: Sequence[str]) -> None:
    """Say so if an option has the name of one of `ours` and the script does not seem to know it.

    `samestep run train.py --devices 0` runs on every device, and a script that ignores what it does not know would
    never say so.
    """
    names = [word.partition("=")[0] for word in target.args]
    suspects = [name for name in dict.fromkeys(names) if name in ours and not _knows(target, name)]
    if suspects:
        notice(
            f"{', '.join(suspects)} behind the script goes to the script; what is meant for Samestep stands before it: "
            f"samestep run {suspects[0]} … {target.path}"
        )


def _knows(target: ScriptTarget, option: str) -> bool:
    """Whether the source of the script has the name of an option, in one way or another; of a module it is assumed."""
    if target.path is None:
        return True
    try:
        source = Path(target.path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    name = option.lstrip("-")
    return re.search(rf"\b{name.replace('-', '[-_]')}\b", source) is not None
