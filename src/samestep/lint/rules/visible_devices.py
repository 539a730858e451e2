"""SST1: what is written into CUDA_VISIBLE_DEVICES and its kin."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from samestep.lint.device_lists import (
    VISIBLE,
    has_duplicates,
    look_alikes,
    meant_variable,
    with_ascii,
)
from samestep.lint.findings import Edit, Finding, ReplaceExpression, ReplaceText
from samestep.lint.python.edits import new_string
from samestep.lint.python.environment import settings
from samestep.lint.python.script import Script
from samestep.lint.registry import Rule, prose, source
from samestep.lint.rules.device_names import device_strings
from samestep.lint.shell.script import ShellScript

LOOK_ALIKE = Rule(
    code="SST101",
    name="look-alike-character",
    severity="error",
    summary="A device list holds a character that only looks like a comma, a colon, a quote or a digit.",
    why=prose("""
        East Asian keyboards type a fullwidth comma `，`; documents and chats turn quotes and hyphens into typographic
        ones. CUDA reads CUDA_VISIBLE_DEVICES up to the first thing that it does not understand and silently ignores
        the rest: `2，3` is device 2 alone, or none. Nothing is printed; the program runs on fewer GPUs, or on the CPU.
        """),
    wrong=source("""
        import os

        os.environ["CUDA_VISIBLE_DEVICES"] = "2，3"
        """),
    right=source("""
        import os

        os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"
        """),
    mend="Type the ASCII character.",
    fixed=source("""
        import os

        os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"
        """),
)


@LOOK_ALIKE.python
def _look_alike(script: Script) -> Iterator[Finding]:
    values = [each.value for each in settings(script) if each.name in VISIBLE]
    for node in [*values, *device_strings(script)]:
        text = script.value(node).text
        if text is not None and (found := look_alikes(text)):
            yield LOOK_ALIKE.at(
                script, node, _look_alike_message(found, text), *new_string(script, node, with_ascii(text))
            )


@LOOK_ALIKE.shell
def _look_alike_in_shell(script: ShellScript) -> Iterator[Finding]:
    for each in script.assignments:
        found = look_alikes(each.value)
        if each.name in VISIBLE and found:
            span = script.span(each.value_start, each.word.end)
            edit = ReplaceText(span, with_ascii(script.source[each.value_start : each.word.end]))
            yield LOOK_ALIKE.here(script.path, span, _look_alike_message(found, each.value), edit)


def _look_alike_message(found: list[str], text: str) -> str:
    marks = ", ".join(f"{mark!r} (U+{ord(mark):04X})" for mark in found)
    return f"{text!r} holds {marks}, which looks like ASCII and is not; write {with_ascii(text)!r}"


NOT_A_STRING = Rule(
    code="SST103",
    name="visible-devices-not-a-string",
    severity="error",
    summary="An environment variable is given a number or a list; only strings are accepted.",
    why=prose("""
        `os.environ["CUDA_VISIBLE_DEVICES"] = 0` raises `TypeError: str expected, not int`. It is often found only on
        the one path that is taken when a GPU is chosen by an argument: `--gpu` with `type=int`."""),
    wrong=source("""
        import os

        os.environ["CUDA_VISIBLE_DEVICES"] = 0
        """),
    right=source("""
        import os

        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        """),
    mend='Give a string: `"0"`, `"0,1"`, `str(args.gpu)`, `",".join(map(str, args.gpus))`.',
    fixed=source("""
        import os

        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        """),
)


@NOT_A_STRING.python
def _not_a_string(script: Script) -> Iterator[Finding]:
    for each in settings(script):
        value = script.value(each.value)
        fix: tuple[Edit, ...] = ()
        if value.kind == "constant" and not isinstance(value.data, str | bytes | type(...)):
            numbers = value.numbers if value.numbers is not None else [value.whole_number]
            if None not in numbers and numbers:
                fix = new_string(script, each.value, ",".join(map(str, numbers)))
            given = type(value.data).__name__
            message = f"{each.name} is given {given}, and must be a str: TypeError"
            yield NOT_A_STRING.at(script, each.value, message, *fix)
        elif isinstance(each.value, ast.Attribute) and (found := _argument_kind(script, each.value)):
            kind, always = found
            text = script.source(each.value)
            made = f"str({text})" if kind == "int" else f'",".join(map(str, {text}))'
            fix = (ReplaceExpression(script.span(each.value), made),) if always else ()
            message = f"{text} is {kind}, and {each.name} must be a str: TypeError"
            yield NOT_A_STRING.at(script, each.value, message, *fix)


def _argument_kind(script: Script, node: ast.Attribute) -> tuple[str, bool] | None:
    """`int` or `a list` for `args.gpu`, where the parser in this file says so, and whether it cannot be None."""
    if script.value(node.value).kind != "arguments" or script.value(node).kind != "unknown":
        return None
    stored = (
        each for each in script.of_type(ast.Attribute) if isinstance(each, ast.Attribute) and each.attr == node.attr
    )
    if any(isinstance(each.ctx, ast.Store) for each in stored):
        return None
    for call in script.method_calls("add_argument"):
        names = [script.value(each).text or "" for each in call.args]
        keywords = {each.arg: each.value for each in call.keywords}
        destination = script.value(keywords.get("dest")).text or _destination(names)
        if destination != node.attr:
            continue
        if keywords.keys() & {"action", None}:
            return None
        kind = keywords.get("type")
        is_int = isinstance(kind, ast.Name) and kind.id == "int"
        default = script.value(keywords.get("default"))
        given = default.kind == "constant" and default.data is not None
        given = given or not names[0].startswith("-") or script.value(keywords.get("required")).data is True
        if "nargs" in keywords:
            nargs = script.value(keywords["nargs"])
            several = nargs.text in ("+", "*") or nargs.whole_number is not None
            return ("a list", given and default.text is None) if several else None
        return ("int", given) if is_int else None
    return None


def _destination(names: list[str]) -> str:
    long = [name for name in names if name.startswith("--")] or names
    return long[0].lstrip("-").replace("-", "_") if long else ""


DUPLICATE = Rule(
    code="SST107",
    name="duplicate-device",
    severity="error",
    summary="A device is listed twice.",
    why=prose("""
        For CUDA a repeated entry makes the whole of CUDA_VISIBLE_DEVICES void: no device is visible. In `device_ids`
        it makes two replicas share one GPU."""),
    wrong=source("""
        import os

        os.environ["CUDA_VISIBLE_DEVICES"] = "0,1,1"
        """),
    right=source("""
        import os

        os.environ["CUDA_VISIBLE_DEVICES"] = "0,1,2"
        """),
    mend="List each device once. Which one was meant instead is not certain, so `--fix` leaves it.",
)


@DUPLICATE.python
def _duplicate(script: Script) -> Iterator[Finding]:
    for each in settings(script):
        text = script.value(each.value).text
        if each.name in VISIBLE[:3] and text is not None and has_duplicates(text):
            yield DUPLICATE.at(script, each.value, f"{text!r} names a device twice, so that CUDA sees none")
    for call in script.calls("torch.nn.DataParallel", "torch.nn.parallel.data_parallel"):
        for keyword in call.keywords:
            numbers = script.value(keyword.value).numbers
            if keyword.arg == "device_ids" and numbers is not None and len(set(numbers)) < len(numbers):
                yield DUPLICATE.at(script, keyword.value, f"device_ids={numbers} names a device twice")


@DUPLICATE.shell
def _duplicate_in_shell(script: ShellScript) -> Iterator[Finding]:
    for each in script.assignments:
        if each.name in VISIBLE[:3] and each.constant and has_duplicates(each.value):
            span = script.span(each.value_start, each.word.end)
            yield DUPLICATE.here(script.path, span, f"{each.value!r} names a device twice, so that CUDA sees none")


MISSPELT = Rule(
    code="SST108",
    name="misspelt-variable",
    severity="error",
    summary="The name of a device variable is misspelt.",
    why=prose("""
        An environment variable that nobody reads is no error for anybody. With `CUDA_VISIBLE_DEVICE` or
        `CUDA_VISIABLE_DEVICES` the program sees every GPU and takes the first."""),
    wrong=source("""
        import os

        os.environ["CUDA_VISIBLE_DEVICE"] = "1"
        """),
    right=source("""
        import os

        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        """),
    mend="Correct the name.",
    fixed=source("""
        import os

        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        """),
)


@MISSPELT.python
def _misspelt(script: Script) -> Iterator[Finding]:
    for each in settings(script):
        if (meant := meant_variable(each.name)) is not None:
            fix = new_string(script, each.name_node, meant) if isinstance(each.name_node, ast.Constant) else ()
            yield MISSPELT.at(script, each.name_node, f"nothing reads {each.name}; {meant} was meant", *fix)


@MISSPELT.shell
def _misspelt_in_shell(script: ShellScript) -> Iterator[Finding]:
    for each in script.assignments:
        meant = meant_variable(each.name)
        if meant is not None and not script.uses(each.name):
            span = script.span(each.word.start, each.word.start + len(each.name))
            message = f"nothing reads {each.name}; {meant} was meant"
            yield MISSPELT.here(script.path, span, message, ReplaceText(span, meant))


RULES = [LOOK_ALIKE, NOT_A_STRING, DUPLICATE, MISSPELT]
