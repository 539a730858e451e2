"""Modules whose parts lie on several devices, which cannot be combined with one device per rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from samestep.errors import SamestepError


def refuse_several(name: str, parameters: Iterable[Any]) -> None:
    """Raise if the parameters of the module called `name` lie on more than one accelerator.

    Parts on the CPU beside one device are allowed: they do not take another rank's device.

    Raises:
        SamestepError: with the devices and the ways out.
    """
    found: dict[str, int] = {}
    for p in parameters:
        if p.device.type not in ("cpu", "meta"):
            found[str(p.device)] = found.get(str(p.device), 0) + 1
    if len(found) > 1:
        places = " and ".join(f"{count} on {device}" for device, count in sorted(found.items()))
        raise SamestepError(
            f"{name} has its parameters on several devices ({places}): a model whose parts are placed by hand takes "
            "the devices of other ranks. Put all of it on `cuda` and let Samestep split the batch, or run the script "
            "by itself: `python script.py`."
        )
