"""How near every program of `tests/programs` comes to one process, as a table: `python tests/programs_table.py`.

Writes docs/programs.md: for each program the largest relative difference of its final weights on 2, 3 and 4 ranks,
the program's own noise, how many tensors a step are gathered, and what became of its modules (`--explain`).
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from running import (
    OTHER_KERNELS,
    PROGRAMS,
    TOLERANCE,
    Result,
    compare,
    environment,
    largest_relative_difference,
    run_plain,
    run_samestep,
)
from warm import WarmStart

TABLE = PROGRAMS.parents[1] / "docs" / "programs.md"
RANKS = (2, 3, 4)
TIMEOUT_S = 600.0

#: Programs that draw random numbers inside their modules: one device's numbers only with `--exact-random`.
DRAWN = frozenset(["dropout_transformer", "vae_drawing_inside", "stochastic_layers"])
#: Programs that may differ by more than 1e-5, and why that is rounding.
TOLERANCES = {
    # A rank's gradients are rounded to bfloat16 (8 bits) before they are added up, one device's sum only once.
    "autocast_bf16": 1e-2,
}
#: By default at 4 ranks: a last batch of one row, batches of fewer rows than ranks, a gather in every step.
_AT_FOUR = frozenset(["classifier", "contrastive", "tiny_batches"])

_TEXT = """# Programs against one process

Made by `python tests/programs_table.py` (torch {torch}, Gloo, CPU); not by hand.

Every program is run by plain `python` and by `samestep run` on 2, 3 and 4 ranks. *2, 3, 4*: the largest relative
difference of a tensor of the final weights (largest difference / largest value); in bold if the printed lines differ
or it is larger than {tolerance:.0e}. *Noise*: the same between one process and itself on another processor, so to say:
kernels without vector instructions, and starting weights larger by 1e-7. *Gathers*: tensors made whole per batch,
printed losses included. *Plan*: what became of the modules on 3 ranks.

{count} of the {total} programs of tests/programs are in the table; {same} of them are the same on every number of
ranks, {split} with every module split.

| program | 2 | 3 | 4 | noise | gathers | plan |
|---|---|---|---|---|---|---|
"""


def ranks_by_default(name: str) -> int:
    """How many ranks a program runs on in `make test`."""
    return 4 if name in _AT_FOUR else 2 + sum(name.encode()) % 2


@dataclass(frozen=True)
class Row:
    """What is known of one program: differences by ranks (None: other lines or no end), and the rest of its row."""

    name: str
    title: str
    differences: Mapping[int, float | None]
    noise: float
    gathers: float
    plan: str

    def text(self) -> str:
        cells = [self._difference(n) for n in RANKS]
        return " | ".join(
            [f"| `{self.name}`: {self.title}", *cells, _short(self.noise), f"{self.gathers:.1f}", f"{self.plan} |"]
        )

    def _difference(self, ranks: int) -> str:
        found = self.differences[ranks]
        limit = TOLERANCES.get(self.name, TOLERANCE)
        return "**differs**" if found is None else f"**{_short(found)}**" if found > limit else _short(found)


def _short(number: float) -> str:
    return "0" if number == 0 else f"{number:.0e}".replace("e-0", "e-")


# ---------------------------------------------------------------------- running
def row_of(name: str, warm: WarmStart, other: WarmStart) -> Row:
    """Run one program in every way."""
    program = PROGRAMS / f"{name}.py"
    truth = run_plain(program, _directory(), timeout_s=TIMEOUT_S, start=warm)
    again = run_plain(program, _directory(), timeout_s=TIMEOUT_S, start=other)
    differences: dict[int, float | None] = {}
    report: Any = {}
    for ranks in RANKS:
        directory = _directory()
        explained = directory.parent / f"{directory.name}.json"
        options = [f"--explain={explained}", *(["--exact-random"] if name in DRAWN else [])]
        result = run_samestep(program, ranks, directory, timeout_s=TIMEOUT_S, options=options, start=warm)
        differences[ranks] = _difference(name, truth, result)
        if ranks == 3 and explained.exists():
            report = json.loads(explained.read_text())
    noise = largest_relative_difference(truth.weights, again.weights)
    return Row(name, _title(program), differences, noise, _gathers(report), _plan(report))


def _directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="programs-"))


def _difference(name: str, truth: Result, result: Result) -> float | None:
    try:
        found = compare(truth, result, tolerance=TOLERANCES.get(name, TOLERANCE))
    except AssertionError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return None
    if found.lines:
        print(f"{name}: {found.lines}", file=sys.stderr)
    return None if found.lines else found.difference


def _title(program: Path) -> str:
    text = ast.get_docstring(ast.parse(program.read_text())) or ""
    return re.split(r"[:.](?:\s|$)", text, maxsplit=1)[0].replace("|", "or")


def _gathers(report: Mapping[str, Any]) -> float:
    steps = sum(b["count"] for b in report.get("batches", [])) + sum(report.get("whole_batches", {}).values())
    return sum(g["count"] for g in report.get("gathers", [])) / max(1, steps)


def _plan(report: Mapping[str, Any]) -> str:
    """`split`, or which modules were opened and why; how many below them are split."""
    plans: Mapping[str, str] = report.get("regions", {})
    opened = {name: plan.removeprefix("opened: ") for name, plan in plans.items() if plan != "split"}
    split = len(plans) - len(opened)
    if not opened:
        return "split" if split else "whole"
    first = [name for name in opened if "." not in name.split(" ")[0]] or list(opened)[:1]
    # In training and in evaluation it is often the same.
    told = "; ".join(dict.fromkeys(f"{name.split(' ')[0]} opened: {opened[name]}" for name in first))
    return f"{told} ({split} split)".replace("|", "or")


# ---------------------------------------------------------------------- writing
def write(lines: Mapping[str, str], path: Path) -> None:
    """Write the table; `lines` has the row of each program by its name."""
    import torch

    plans = [line.rsplit("|", 2)[1].strip() for line in lines.values()]
    head = _TEXT.format(
        torch=torch.__version__.partition("+")[0],
        tolerance=TOLERANCE,
        count=len(lines),
        total=len(list(PROGRAMS.glob("*.py"))),
        same=sum("**" not in line for line in lines.values()),
        split=plans.count("split"),
    )
    notes = [f"`{name}` may differ by {limit:.0e}: see tests/programs_table.py." for name, limit in TOLERANCES.items()]
    path.write_text(head + "\n".join(lines[name] for name in sorted(lines)) + "\n\n" + "\n".join(notes) + "\n")


def lines_in(path: Path) -> dict[str, str]:
    """The rows of a table written before, of programs that are still there."""
    lines = path.read_text().splitlines() if path.exists() else []
    rows = {line.split("`")[1]: line for line in lines if line.startswith("| `")}
    return {name: line for name, line in rows.items() if (PROGRAMS / f"{name}.py").exists()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="programs to run, the rows of others stay (all, if none is named)")
    parser.add_argument("--out", type=Path, default=TABLE, help="the file to write (docs/programs.md)")
    options = parser.parse_args()
    lines = lines_in(options.out) if options.names else {}
    plain = environment()
    with WarmStart(plain) as warm, WarmStart({**plain, **OTHER_KERNELS}, perturbed=True) as other:
        for name in options.names or sorted(path.stem for path in PROGRAMS.glob("*.py")):
            began = time.perf_counter()
            lines[name] = row_of(name, warm, other).text()
            write(lines, options.out)  # what is known so far, should it be interrupted
            print(f"{lines[name]} {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
