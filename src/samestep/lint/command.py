"""`samestep lint`: the options of the command. The work, and what it imports, is in `running`."""

from __future__ import annotations

from typing import Annotated

import typer


def lint(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCRIPT…", help="Python files, shell scripts, directories.", show_default=False),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Mend what is certain, in place (Python: needs libcst).")] = False,
    style: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="text, json, github (workflow commands) or sarif.")
    ] = "text",
    select: Annotated[
        list[str] | None,
        typer.Option(metavar="RULES", help="Only these: SST101,SST2,data, ALL. May be repeated.", show_default=False),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="RULES", help="All but these. May be repeated.", show_default=False)
    ] = None,
    explain: Annotated[
        str | None, typer.Option(metavar="RULE", help="Print the page of a rule, and end.", show_default=False)
    ] = None,
    rules: Annotated[bool, typer.Option("--rules", help="List all rules, and end.")] = False,
) -> int:
    """Find mistakes of multi-device training in source, which is read and never run.

    Exit code: 0 nothing found, 1 something found, 2 wrong usage. A comment `# samestep: ignore[SST101]` silences a rule
    on its line, `# samestep: ignore-file[SST101]` in the file.
    """
    from samestep.lint import running

    if explain is not None:
        return running.explain(explain)
    if rules:
        return running.list_rules()
    return running.lint_paths(paths or [], style, select or [], ignore or [], fix)
