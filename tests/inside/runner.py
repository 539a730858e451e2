"""Runs inside every rank: the `check_*` functions of one file, one after the other, and prints what came of each.

    samestep run --devices cpu:2 runner.py CHECKS.py [CHECK …]

Before a check main prints `{"begin": name}`, after it `{"end": name, "broken": {rank: [claims]}}`. A check that
hangs ends the run with the stacks of the rank on stderr; the side that started the run goes on behind it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import io
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from inside import claims
from samestep.world import current

PREFIX = "@@ "
#: Ranks wait for each other without end when they take different ways; a check that works needs a few seconds, the
#: longest half a minute.
HANG_S = 180.0


def checks_of(path: Path) -> dict[str, Callable[[], None]]:
    """The checks of a file, in its order."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # pickling and worker processes look classes up there
    spec.loader.exec_module(module)
    return {name: value for name, value in vars(module).items() if name.startswith("check_")}


def outcome(check: Callable[[], None]) -> list[str]:
    """The broken claims of one check on this rank; an exception is one of them."""
    claims.NOTED.clear()
    torch.manual_seed(0)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            check()
    except Exception:
        claims.note(traceback.format_exc(limit=-6))
    finally:
        torch.set_grad_enabled(True)
    return list(claims.NOTED)


def say(**message: Any) -> None:
    if current().rank == 0:
        print(PREFIX + json.dumps(message), flush=True)


def main(path: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    checks = checks_of(path)
    stacks = sys.__stderr__
    assert stacks is not None
    for name in names or list(checks):
        say(begin=name)
        faulthandler.dump_traceback_later(HANG_S, exit=True, file=stacks)
        broken = outcome(checks[name])
        everyone = current().all_gather_objects(broken)
        faulthandler.cancel_dump_traceback_later()
        say(end=name, broken={rank: list(notes) for rank, notes in enumerate(everyone) if notes})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
