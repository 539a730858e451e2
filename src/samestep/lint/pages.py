"""The page of each rule and their index, made from the rules: `python -m samestep.lint.pages docs/lint` writes them."""

from __future__ import annotations

import sys
from pathlib import Path

from samestep.lint.registry import GROUPS, Rule, all_rules


def page(rule: Rule) -> str:
    """The page of a rule, in Markdown; also what `samestep lint --explain` prints."""
    fence = "```python" if rule.language == "python" else "```sh"
    kinds = [name for name, checks in (("Python", rule.python_checks), ("shell", rule.shell_checks)) if checks]
    facts = [rule.severity, rule.group, " and ".join(kinds) or "any file"]
    if rule.fixable:
        facts.append("`--fix` mends it where what was meant is certain")
    if not rule.default:
        facts.append(f"off by default: `--select {rule.code}` turns it on")
    parts = [
        f"# {rule.code} {rule.name}",
        rule.summary,
        f"*{' · '.join(facts)}*",
        "## Why",
        rule.why,
        "## Wrong",
        f"{fence}\n{rule.wrong}```",
        "## Right",
        f"{fence}\n{rule.right}```",
        "## Mend",
        rule.mend,
    ]
    if rule.fixed is not None:
        parts += ["`--fix` makes of the wrong example:", f"{fence}\n{rule.fixed}```"]
    parts.append(f"If it is meant: `# samestep: ignore[{rule.code}]` on the line.")
    return "\n\n".join(parts) + "\n"


def index() -> str:
    """The list of all rules, by family."""
    rules = all_rules()
    parts = [
        "# Rules of `samestep lint`",
        "Mistakes of training on several devices, found in Python and shell source without running it. "
        "*fix*: `--fix` mends it where what was meant is certain.",
    ]
    for group in GROUPS.values():
        members = [rule for rule in rules.values() if rule.group == group]
        rows = [f"| [{r.code}]({r.code}.md) | {r.severity} | {_marks(r)} | {r.summary} |" for r in members]
        parts += [
            f"## {group.capitalize()}",
            "\n".join(["| rule | severity | | what it finds |", "|---|---|---|---|", *rows]),
        ]
    return "\n\n".join(parts) + "\n"


def listing() -> str:
    """The rules as lines for the terminal."""
    return "".join(f"{r.code} {r.severity:<7} {_marks(r):<4} {r.name}: {r.summary}\n" for r in all_rules().values())


def write(folder: Path) -> None:
    """Write every page into a directory, and take away the pages of rules that are gone."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {"index.md": index(), **{f"{code}.md": page(rule) for code, rule in all_rules().items()}}
    for old in folder.glob("*.md"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")


def _marks(rule: Rule) -> str:
    words = (["fix"] if rule.fixable else []) + ([] if rule.default else ["off"])
    return ", ".join(words)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
