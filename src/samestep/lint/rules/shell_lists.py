"""SST6: blanks where the shell does not want them, and variables that do not arrive."""

from __future__ import annotations

import re
from collections.abc import Iterator

from samestep.lint.device_lists import VARIABLES
from samestep.lint.findings import Edit, Finding, ReplaceText
from samestep.lint.registry import Rule, prose
from samestep.lint.shell.script import Assignment, ShellScript
from samestep.lint.shell.words import Command, Word

#: Variables that only a started program reads: set without export they do nothing.
_FOR_PROGRAMS = {*VARIABLES, "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "WORLD_SIZE"}
_LIST = re.compile(r"\d+(,\d*)*,?|,\d+(,\d+)*", re.ASCII)

AFTER_EQUALS = Rule(
    code="SST601",
    name="blank-after-equals",
    severity="error",
    language="shell",
    summary="There is a blank between `CUDA_VISIBLE_DEVICES=` and its value.",
    why=prose("""
        For the shell `CUDA_VISIBLE_DEVICES= 2,3 python train.py` is: run the command `2,3` with an empty variable. It
        ends with `2,3: command not found`. In `export CUDA_VISIBLE_DEVICES= 2,3` the variable is exported empty, and
        no GPU is visible."""),
    wrong="CUDA_VISIBLE_DEVICES= 2,3 python train.py\n",
    right="CUDA_VISIBLE_DEVICES=2,3 python train.py\nCUDA_VISIBLE_DEVICES= python train.py --cpu\n",
    mend="Write no blank beside the `=`.",
    fixed="CUDA_VISIBLE_DEVICES=2,3 python train.py\n",
)


@AFTER_EQUALS.shell
def _after_equals(script: ShellScript) -> Iterator[Finding]:
    for each in _of_devices(script):
        following = _next(each.command, each.word)
        if (
            each.value == ""
            and each.word.raw.endswith("=")
            and following is not None
            and _LIST.fullmatch(following.raw)
        ):
            gap = script.span(each.word.end, following.start)
            message = f"the shell takes {following.raw!r} for a command, and {each.name} is empty"
            if each.command.words[0].text == "export":
                message = f"{each.name} is exported empty: no GPU is visible"
            span = script.span(each.word.start, following.end)
            yield AFTER_EQUALS.here(script.path, span, message, ReplaceText(gap, ""))


IN_LIST = Rule(
    code="SST602",
    name="blank-in-device-list",
    severity="error",
    language="shell",
    summary="There is a blank inside the list of devices.",
    why=prose("""
        A blank ends the word: `CUDA_VISIBLE_DEVICES=2, 3 python train.py` runs the command `3`; with export, the
        variable is `2,` and one GPU is visible."""),
    wrong="CUDA_VISIBLE_DEVICES=2, 3 python train.py\n",
    right='CUDA_VISIBLE_DEVICES=2,3 python train.py\nCUDA_VISIBLE_DEVICES="2,3" python train.py\n',
    mend="Write the list without blanks.",
    fixed="CUDA_VISIBLE_DEVICES=2,3 python train.py\n",
)


@IN_LIST.shell
def _in_list(script: ShellScript) -> Iterator[Finding]:
    for each in _of_devices(script):
        parts = [each.word]
        following = _next(each.command, each.word)
        while following is not None and _LIST.fullmatch(following.raw) and _continues(parts[-1].raw, following.raw):
            parts.append(following)
            following = _next(each.command, following)
        if len(parts) > 1 and each.value:
            span = script.span(each.word.start, parts[-1].end)
            joined = "".join(part.raw for part in parts)
            message = f"the blank ends the list: {each.name} is {each.value!r}"
            yield IN_LIST.here(script.path, span, message, ReplaceText(span, joined))


def _continues(before: str, after: str) -> bool:
    return before.endswith(",") != after.startswith(",")


AROUND_EQUALS = Rule(
    code="SST603",
    name="blank-before-equals",
    severity="error",
    language="shell",
    summary="There is a blank before the `=` of an assignment.",
    why=prose("""
        `CUDA_VISIBLE_DEVICES = 2,3` runs a command called CUDA_VISIBLE_DEVICES; `export CUDA_VISIBLE_DEVICES = 2,3`
        exports an empty variable and complains about `=`. In both cases the program behind it sees other GPUs than
        meant."""),
    wrong="export CUDA_VISIBLE_DEVICES = 2,3\npython train.py\n",
    right="export CUDA_VISIBLE_DEVICES=2,3\npython train.py\n",
    mend="Write no blank beside the `=`.",
    fixed="export CUDA_VISIBLE_DEVICES=2,3\npython train.py\n",
)


@AROUND_EQUALS.shell
def _around_equals(script: ShellScript) -> Iterator[Finding]:
    for command in script.commands:
        words = command.words
        start = 1 if words[0].text in ("export", "declare", "env", "set") else 0
        name = words[start] if len(words) > start else None
        following = _next(command, name) if name is not None else None
        if name is None or following is None or name.raw not in VARIABLES or not following.raw.startswith("="):
            continue
        last = _next(command, following) if following.raw == "=" else following
        value = last is not None and _LIST.fullmatch(last.raw.lstrip("="))
        end = last if last is not None and value else following
        span = script.span(name.start, end.end)
        fix: tuple[Edit, ...] = ()
        if last is not None and value:
            fix = (ReplaceText(span, f"{name.raw}={last.raw.lstrip('=')}"),)
        yield AROUND_EQUALS.here(script.path, span, f"a blank before '=': {name.raw} is not set", *fix)


NOT_EXPORTED = Rule(
    code="SST604",
    name="not-exported",
    severity="warning",
    language="shell",
    summary="A variable is set on a line of its own and not exported; the program does not see it.",
    why=prose("""
        `CUDA_VISIBLE_DEVICES=2,3` alone on a line, or before `;` or `&&`, makes a variable of the shell. Programs see
        it only if it was in the environment before. On a login shell without it, the program takes GPU 0."""),
    wrong="CUDA_VISIBLE_DEVICES=2,3\npython train.py\n",
    right="export CUDA_VISIBLE_DEVICES=2,3\npython train.py\n",
    mend="Write `export`, or put the assignment before the command on the same line.",
    fixed="export CUDA_VISIBLE_DEVICES=2,3\npython train.py\n",
)


@NOT_EXPORTED.shell
def _not_exported(script: ShellScript) -> Iterator[Finding]:
    exported = {each.name for each in script.assignments if each.exported and each.alone}
    if "#SBATCH" in script.source:  # SLURM has exported the devices of the job already
        exported |= set(VARIABLES)
    for command in script.commands:
        words = [word.text for word in command.words]
        if words[0] in ("export", "declare", "typeset"):
            exported |= set(words[1:])
        if words[0] == "set" and ("-a" in words or "allexport" in words):
            return
    for index, command in enumerate(script.commands):
        for each in script.assigned(command):
            shown = each.name in _FOR_PROGRAMS and each.alone and not each.exported and command.ends_with != "|"
            if not shown or each.name in exported or script.uses(each.name) or command.words[0] is not each.word:
                continue
            if each.value == "" or not _runs_python(script.commands[index + 1 :]):
                continue
            span = script.word_span(each.word)
            fix = ReplaceText(span, f"export {each.word.raw}")
            yield NOT_EXPORTED.here(script.path, span, f"{each.name} is not exported: the program does not see it", fix)


def _runs_python(commands: list[Command]) -> bool:
    starts = ("python", "torchrun", "accelerate", "deepspeed", "samestep", "bash", "sh", "sbatch", "srun", "mpirun")
    return any(word.text.rpartition("/")[2].startswith(starts) for command in commands for word in command.words[:6])


AFTER_PROGRAM = Rule(
    code="SST608",
    name="variable-behind-the-program",
    severity="error",
    language="shell",
    summary="A variable is written behind the program, which gets it as an argument.",
    why=prose("""
        Only what stands before the command is an assignment. `python train.py CUDA_VISIBLE_DEVICES=1` passes a word to
        the script; the environment is unchanged, and GPU 0 is used."""),
    wrong="python train.py CUDA_VISIBLE_DEVICES=1\n",
    right="CUDA_VISIBLE_DEVICES=1 python train.py\nenv CUDA_VISIBLE_DEVICES=1 python train.py\n",
    mend="Write it before the command.",
)


@AFTER_PROGRAM.shell
def _after_program(script: ShellScript) -> Iterator[Finding]:
    for command in script.commands:
        seen = False
        for word in command.words:
            program = word.text.rpartition("/")[2]
            if seen and word.raw.partition("=")[0] in VARIABLES and "=" in word.raw:
                message = f"{word.raw.partition('=')[0]} is an argument of the program here, not set"
                yield AFTER_PROGRAM.here(script.path, script.word_span(word), message)
            seen = seen or re.fullmatch(r"python[\d.]*|torchrun", program) is not None
            if word.text in ("-c", "docker", "ssh", "sudo", "env", "sbatch", "qsub", "bsub"):
                break


def _of_devices(script: ShellScript) -> Iterator[Assignment]:
    return (each for each in script.assignments if each.name in VARIABLES)


def _next(command: Command, word: Word) -> Word | None:
    """The word behind another, if only blanks stand between them."""
    for before, after in zip(command.words, command.words[1:], strict=False):
        if before is word:
            return after
    return None


RULES = [AFTER_EQUALS, IN_LIST, AROUND_EQUALS, NOT_EXPORTED, AFTER_PROGRAM]
