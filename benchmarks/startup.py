"""From the command to the end of the first training step: `samestep run` against `torchrun --standalone`.

    python benchmarks/startup.py [--ranks 2 4] [--repeats 7] [--json FILE]

The runs alternate. Timed are the moment at which main's line arrives and the end of the launcher.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent


def command(tool: str, ranks: int) -> list[str]:
    """The command line of a tool that starts its program on that many CPU ranks."""
    if tool == "samestep":
        return [sys.executable, "-m", "samestep", "run", "--devices", f"cpu:{ranks}", str(HERE / "startup_single.py")]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*torchrun, str(HERE / "startup_ddp.py")]


def once(tool: str, ranks: int) -> tuple[float, float]:
    """Seconds until the first step is done, and until the launcher has ended."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    began = time.perf_counter()
    with subprocess.Popen(
        command(tool, ranks), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        first_step = time.perf_counter() - began
        _, errors = process.communicate()
    end = time.perf_counter() - began
    # A torchrun of a finished program ends now and then with SIGABRT over Gloo: its times are as good as any.
    failed = process.returncode and tool == "samestep"
    if failed or line.strip() != "first step True":
        raise SystemExit(f"{tool} on {ranks} ranks ended with exit code {process.returncode}: {line}{errors}")
    return first_step, end


def _middle(values: list[float]) -> str:
    low, median, high = statistics.quantiles(values, n=4)
    return f"{median:.2f} s ({low:.2f}–{high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time from the command to the first step.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", help="write every run's time to this file")
    args = parser.parse_args()

    console = Console()
    table = Table(title="From the command", title_justify="left")
    for heading in ("ranks", "", "to the first step", "to the end"):
        table.add_column(heading)
    record = []
    for ranks in args.ranks:
        times: dict[str, list[tuple[float, float]]] = {"torchrun": [], "samestep": []}
        with console.status(f"{ranks} ranks"):
            for tool in times:
                once(tool, ranks)  # the files are in the page cache from here on
            for number in range(args.repeats):
                for tool in times if number % 2 == 0 else reversed(times):
                    times[tool].append(once(tool, ranks))
        for tool, pairs in times.items():
            steps, ends = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            table.add_row(str(ranks), tool, _middle(steps), _middle(ends))
            record.append({"ranks": ranks, "tool": tool, "first_step_s": steps, "end_s": ends})
    console.print(table)
    if args.json:
        Path(args.json).write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
