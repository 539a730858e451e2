"""The edits of a fix as a libcst transformer: found by their places in the original file."""

from __future__ import annotations

import libcst as cst
from libcst.metadata import CodeRange, PositionProvider

from samestep.lint.findings import (
    Edit,
    GuardMain,
    InsertStatement,
    ReplaceExpression,
    ReplaceStatement,
    SetArgument,
    Span,
)


class Rewriter(cst.CSTTransformer):
    """Makes the edits whose places it finds, and notes them in `made`."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, edits: list[Edit]) -> None:
        super().__init__()
        self.made: set[Edit] = set()
        self._edits: dict[Span, list[Edit]] = {}
        for edit in edits:
            self._edits.setdefault(edit.span, []).append(edit)
        self._config = cst.PartialParserConfig()

    def visit_Module(self, node: cst.Module) -> None:
        self._config = node.config_for_parsing

    def on_leave(  # type: ignore[override]
        self, original: cst.CSTNode, updated: cst.CSTNode
    ) -> cst.CSTNode | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNode]:
        result = super().on_leave(original, updated)
        if not isinstance(result, cst.CSTNode):
            return result
        span = self._span(original)
        if span is None:
            return result
        for edit in self._edits.get(span, ()):
            if edit not in self.made and (changed := self._change(edit, original, result)) is not None:
                self.made.add(edit)
                return changed
        return result

    def _change(
        self, edit: Edit, original: cst.CSTNode, node: cst.CSTNode
    ) -> cst.CSTNode | cst.FlattenSentinel[cst.CSTNode] | None:
        if isinstance(edit, ReplaceExpression) and isinstance(node, cst.BaseExpression):
            return self._expression(edit.source, node)
        if isinstance(edit, SetArgument) and isinstance(node, cst.Call):
            return self._set_argument(node, edit)
        if isinstance(edit, ReplaceStatement) and isinstance(node, cst.Expr | cst.Assign):
            line = self._line(edit.source).body[0]
            assert isinstance(line, cst.BaseSmallStatement)
            return line.with_changes(semicolon=node.semicolon)
        if (
            isinstance(edit, InsertStatement)
            and edit.where == "inside"
            and isinstance(node, cst.For | cst.While | cst.With)
        ):
            return self._insert_inside(node, edit.source)
        if isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            if isinstance(edit, InsertStatement) and edit.where != "inside":
                return self._insert_beside(node, edit)
            if isinstance(edit, GuardMain):
                return self._guard(node)
        return None

    def _expression(self, source: str, old: cst.BaseExpression) -> cst.BaseExpression:
        # A pair that is put into a list of arguments is no expression of its own: `a, b`.
        new = cst.parse_expression(source, self._config)
        return new.with_changes(lpar=[*old.lpar, *new.lpar], rpar=[*new.rpar, *old.rpar]) if old.lpar else new

    def _set_argument(self, call: cst.Call, edit: SetArgument) -> cst.Call:
        others = [arg for arg in call.args if arg.keyword is None or arg.keyword.value != edit.name]
        if edit.source is None:
            if others and call.args[-1] is not others[-1]:  # what was before the last keeps the end of the list
                others[-1] = others[-1].with_changes(
                    comma=call.args[-1].comma, whitespace_after_arg=call.args[-1].whitespace_after_arg
                )
            return call.with_changes(args=others)
        equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        value = cst.parse_expression(edit.source, self._config)
        added = cst.Arg(value, cst.Name(edit.name), equal)
        if not others:
            return call.with_changes(args=[added])
        last = others[-1]
        separator: cst.BaseParenthesizableWhitespace = cst.SimpleWhitespace(" ")
        if len(others) > 1 and isinstance(others[-2].comma, cst.Comma):
            separator = _without_comment(others[-2].comma.whitespace_after)
        elif isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace):
            separator = _without_comment(call.whitespace_before_args)
        end = last.comma
        if isinstance(end, cst.Comma):  # a comment behind the last argument stays behind it
            separator = _with_comment_of(separator, end.whitespace_after)
            end = end.with_changes(whitespace_after=_without_comment(end.whitespace_after))
        added = added.with_changes(comma=end, whitespace_after_arg=last.whitespace_after_arg)
        before = last.with_changes(
            comma=cst.Comma(whitespace_after=separator), whitespace_after_arg=cst.SimpleWhitespace("")
        )
        return call.with_changes(args=[*others[:-1], before, added])

    def _insert_inside(self, node: cst.For | cst.While | cst.With, source: str) -> cst.CSTNode | None:
        if not isinstance(node.body, cst.IndentedBlock):
            return None
        return node.with_changes(body=node.body.with_changes(body=[self._line(source), *node.body.body]))

    def _insert_beside(
        self, node: cst.SimpleStatementLine | cst.BaseCompoundStatement, edit: InsertStatement
    ) -> cst.FlattenSentinel[cst.CSTNode]:
        line = self._line(edit.source)
        if edit.where == "after":
            return cst.FlattenSentinel([node, line])
        return cst.FlattenSentinel(
            [line.with_changes(leading_lines=node.leading_lines), node.with_changes(leading_lines=[])]
        )

    def _guard(self, node: cst.SimpleStatementLine | cst.BaseCompoundStatement) -> cst.If:
        test = cst.parse_expression('__name__ == "__main__"', self._config)
        inner = node.with_changes(leading_lines=[])
        return cst.If(test, cst.IndentedBlock([inner]), leading_lines=node.leading_lines)

    def _line(self, source: str) -> cst.SimpleStatementLine:
        line = cst.parse_statement(source, self._config)
        assert isinstance(line, cst.SimpleStatementLine)
        return line

    def _span(self, node: cst.CSTNode) -> Span | None:
        place = self.get_metadata(PositionProvider, node, None)
        if not isinstance(place, CodeRange):
            return None
        return Span(place.start.line, place.start.column + 1, place.end.line, place.end.column + 1)


def _without_comment(space: cst.BaseParenthesizableWhitespace) -> cst.BaseParenthesizableWhitespace:
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return space
    bare = space.first_line.with_changes(comment=None, whitespace=cst.SimpleWhitespace(""))
    return space.with_changes(first_line=bare, empty_lines=[])


def _with_comment_of(
    space: cst.BaseParenthesizableWhitespace, other: cst.BaseParenthesizableWhitespace
) -> cst.BaseParenthesizableWhitespace:
    if not isinstance(space, cst.ParenthesizedWhitespace) or not isinstance(other, cst.ParenthesizedWhitespace):
        return space
    return space.with_changes(first_line=other.first_line)
