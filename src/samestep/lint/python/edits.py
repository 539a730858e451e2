"""Fixes that several rules offer."""

from __future__ import annotations

import ast

from samestep.lint.findings import Edit, ReplaceExpression
from samestep.lint.python.script import Script


def new_string(script: Script, node: ast.AST, text: str) -> tuple[Edit, ...]:
    """Write the string `text` in place of a literal; no fix if the node is none (the literal stands elsewhere)."""
    if not isinstance(node, ast.Constant | ast.List | ast.Tuple) or "\\" in text or '"' in text or "'" in text:
        return ()
    written = script.source(node)
    quote = "'" if written.endswith("'") else '"'
    return (ReplaceExpression(script.span(node), f"{quote}{text}{quote}"),)
