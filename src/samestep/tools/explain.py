"""The report of `samestep run --explain`: what was split, what was gathered and where, where the time went."""

from __future__ import annotations

from typing import Any

from samestep.ledger import LEDGER


def collect(devices: str, ranks: int, seconds: float) -> dict[str, Any]:
    """The main rank's counts as plain data (what `--explain FILE.json` writes).

    Times are seconds of the main rank: `compute_s` is what is left of the script's time after waiting for data and
    for other ranks.
    """
    gathers = [
        {"file": file, "line": line, "operation": operation, "kind": kind, "count": g.count, "bytes": g.bytes}
        for (file, line, operation, kind), g in sorted(LEDGER.gathers.items(), key=lambda item: -item[1].bytes)
    ]
    return {
        "devices": devices,
        "ranks": ranks,
        "batches": [{"rows": sum(sizes), "sizes": list(sizes), "count": n} for sizes, n in LEDGER.cuts.most_common()],
        "whole_batches": dict(LEDGER.whole_batches),
        "regions": dict(LEDGER.regions),
        "region_calls": LEDGER.region_calls,
        "gathers": gathers,
        "gradient_bytes": LEDGER.reduced_bytes,
        "seconds": round(seconds, 4),
        "data_s": round(LEDGER.data_s, 4),
        "communication_s": round(LEDGER.communication_s, 4),
        "compute_s": round(max(0.0, seconds - LEDGER.data_s - LEDGER.communication_s), 4),
    }


def show(report: dict[str, Any]) -> None:
    """Print the report to stderr (stdout is the script's)."""
    from rich.console import Console
    from rich.table import Table

    console = Console(stderr=True, soft_wrap=True)
    console.print(f"\nsamestep: {report['ranks']} ranks on {report['devices']}", highlight=False)
    for batch in report["batches"]:
        cut = " + ".join(map(str, batch["sizes"]))
        console.print(f"  batch {batch['rows']} → {cut}   ({batch['count']} times)", highlight=False)
    for reason, count in report["whole_batches"].items():
        console.print(f"  whole batch on every rank: {reason}   ({count} times)", highlight=False)
    for name, plan in report["regions"].items():
        console.print(f"  {name}: {plan}", highlight=False, markup=False)
    if report["gathers"]:
        table = Table("made whole at", "operation", "kind", "count", "bytes", title="gathers", title_justify="left")
        for g in report["gathers"]:
            table.add_row(f"{g['file']}:{g['line']}", g["operation"], g["kind"], str(g["count"]), f"{g['bytes']:,}")
        console.print(table)
    else:
        console.print("  nothing was gathered", highlight=False)
    console.print(
        f"  {report['seconds']:.2f} s: data {report['data_s']:.2f}, compute {report['compute_s']:.2f}, "
        f"communication {report['communication_s']:.2f}; gradients {report['gradient_bytes']:,} bytes",
        highlight=False,
    )
