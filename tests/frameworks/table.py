"""Make the table of docs/frameworks.md from what the tests recorded.

    python tests/frameworks/table.py junit.xml [junit.xml …]

Fails if a program of `frameworks.cases` has no passed test in the files, so the table cannot be made from half a run.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "frameworks.md"
BEGIN, END = "<!-- table: made by tests/frameworks/table.py -->", "<!-- end of table -->"
COLUMNS = {
    "framework": "framework",
    "version": "version",
    "program": "program",
    "ranks": "ranks",
    "difference": "difference of weights",
    "noise": "its own noise",
    "metrics_equal": "metrics equal",
    "lines_equal": "lines equal",
    "files_equal": "files equal",
    "split": "split",
}


def rows(files: list[Path]) -> list[dict[str, str]]:
    """What each passed test recorded; of several in the files the last."""
    found = {}
    for file in files:
        for case in ElementTree.parse(file).getroot().iter("testcase"):
            if any(child.tag in ("failure", "error", "skipped") for child in case):
                continue
            recorded = {p.get("name", ""): p.get("value", "") for p in case.iter("property")}
            if "framework" in recorded:
                found[recorded["program"], recorded["ranks"]] = recorded
    return sorted(found.values(), key=lambda row: (row["framework"].lower(), row["program"], int(row["ranks"])))


def table(recorded: list[dict[str, str]]) -> str:
    """The rows in Markdown."""
    shown = {"True": "yes", "False": "no"}
    lines = ["| " + " | ".join(COLUMNS.values()) + " |", "|" + "---|" * len(COLUMNS)]
    for row in recorded:
        lines.append("| " + " | ".join(shown.get(row.get(key, ""), row.get(key, "")) for key in COLUMNS) + " |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Replace the table in the page."""
    sys.path.insert(0, str(ROOT / "tests"))
    from frameworks.cases import CASES, EXAMPLES

    recorded = rows([Path(each) for each in arguments])
    missing = sorted((CASES.keys() | EXAMPLES.keys()) - {row["program"] for row in recorded})
    if not recorded or missing:
        print(f"No passed test of: {', '.join(missing)}. The table stays as it is.", file=sys.stderr)
        return 1
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(recorded)}\n{END}{after}", encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {len(recorded)} rows")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
