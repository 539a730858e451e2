"""The command line: `samestep run`, `samestep devices`.

Whatever is asked wrongly ends with exit code 2 and one message on stderr, before torch is imported.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, NoReturn

import typer
import typer.main

from samestep.devices.inventory import Inventory, take_inventory, usable_cores
from samestep.devices.spec import FALLBACK_RANKS, resolve
from samestep.errors import SamestepError
from samestep.launch.script import ScriptTarget, check_target
from samestep.notice import notice

TERMINAL = "-"
_USAGE_ERROR = 2
_WITH_VALUE = ("--devices", "--gpus")

app = typer.Typer(
    help="The training step you wrote, on every device you have.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def samestep() -> None:
    """The training step you wrote, on every device you have."""


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT [ARGS…]", help="The script and its arguments, as for python.", show_default=False
        ),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            "--devices",
            "--gpus",
            metavar="SPEC",
            help="all, GPU numbers such as 1,3 or 0-3, or cpu:2. Without it: SAMESTEP_DEVICES, else every GPU.",
            show_default=False,
        ),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option("-m", metavar="MODULE", help="Run a module, as python -m does.", show_default=False),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain",
            metavar="[FILE.json]",
            help="Report at the end how the work was divided: on the terminal, or as JSON into a file.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run an ordinary single-device script on every device, with the numbers of one device."""
    arguments = tuple(words or ())
    if module is not None:
        target = ScriptTarget(None, module, arguments)
    else:
        target = ScriptTarget(arguments[0] if arguments else None, None, arguments[1:])
    selection = resolve(devices)
    check_target(target)
    report = _check_explain(explain)
    if selection.note is not None:
        notice(selection.note)
    _run_ranks(selection, target, report)


@app.command("devices")
def show_devices(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the devices that a run can use."""
    inventory = take_inventory()
    if as_json:
        print(json.dumps(_inventory_json(inventory), indent=2))
    else:
        _print_table(inventory)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The command `samestep`."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        sys.exit(_dispatch(given))
    except SamestepError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _end_by_signal(signal.SIGINT)
    except BrokenPipeError:  # `samestep devices | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)


def split_run(arguments: Sequence[str]) -> list[str]:
    """The words after `samestep run`, rewritten so that the options of the script are not taken for ours.

    Ours end at the script, at `-m MODULE` or at `--`. `--explain` takes the next word only if that ends in `.json`.
    """
    ours: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            break
        if word == "-m" or (word.startswith("-m") and not word.startswith("--")):
            module = [word[2:]] if word != "-m" else rest[:1]
            ours += ["-m", *module]
            rest = rest[1:] if word == "-m" else rest
            break
        if not word.startswith("-") or word == "-":
            rest.insert(0, word)
            break
        if word == "--explain":
            ours.append("--explain=" + (rest.pop(0) if rest and rest[0].endswith(".json") else TERMINAL))
        elif word in _WITH_VALUE:
            ours += [word, *rest[:1]]
            rest = rest[1:]
        else:
            ours.append(word)
    return [*ours, "--", *rest] if rest else ours


def _dispatch(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print(f"samestep {_version()}")
        return 0
    if arguments[:1] == ["run"]:
        arguments = ["run", *split_run(arguments[1:])]
    command = typer.main.get_command(app)
    try:
        result = command.main(args=arguments, prog_name="samestep", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        if not _is_usage_error(error):
            raise
        message = str(getattr(error, "format_message")()).strip()  # noqa: B009 (typer does not export its type)
        if message:
            _fail(message[0].lower() + message[1:].rstrip(".") + "; see samestep --help")
        return 0 if not arguments else _USAGE_ERROR  # the help has been printed
    return result if isinstance(result, int) else 0


def _run_ranks(selection: Any, target: ScriptTarget, explain: str | None) -> NoReturn:
    from samestep.launch.local import prepare, run_ranks

    prepare(selection)  # imports torch, once for all ranks
    from samestep.session import run_rank

    outcome = run_ranks(partial(run_rank, target=target, explain=explain), selection)
    if outcome.signal is not None:
        _end_by_signal(outcome.signal)
    sys.exit(outcome.code)


def _end_by_signal(number: int) -> NoReturn:
    """End as Python does when a signal ended it: by that signal, so that a shell script stops, too, on Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    sys.exit(128 + number)  # where it is blocked


def _check_explain(explain: str | None) -> str | None:
    if explain is None or explain == TERMINAL:
        return explain
    if not explain:
        raise SamestepError("--explain= names no file; write --explain=FILE.json, or --explain for the terminal")
    path = os.path.abspath(explain)  # the script may change its directory
    folder = os.path.dirname(path)
    if os.path.isdir(path):
        raise SamestepError(f"--explain: {explain!r} is a directory; name a file in it")
    if not os.path.isdir(folder):
        raise SamestepError(f"--explain: there is no directory {folder!r} to write {os.path.basename(path)!r} to")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise SamestepError(f"--explain: {explain!r} may not be written (permission denied)")
    return path


def _is_usage_error(error: Exception) -> bool:
    # Some releases of typer use the package click, others a copy of it; the class is told by its name.
    return any(base.__name__ == "ClickException" for base in type(error).__mro__)


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"samestep: {message}\n")
    sys.exit(_USAGE_ERROR)


def _version() -> str:
    try:
        return importlib.metadata.version("samestep")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _default(inventory: Inventory) -> str:
    return "all" if inventory.gpus else f"cpu:{FALLBACK_RANKS}"


def _inventory_json(inventory: Inventory) -> dict[str, Any]:
    gpus = [
        {"number": each.number, "visible": each.token, **(asdict(each.gpu) if each.gpu is not None else {})}
        for each in inventory.gpus
    ]
    return {"gpus": gpus, "no_gpu": inventory.reason, "cores": usable_cores(), "default": _default(inventory)}


def _print_table(inventory: Inventory) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("--devices", "device", "memory", "in use", "UUID"):
        table.add_column(column, overflow="fold")
    for each in inventory.gpus:
        gpu = each.gpu
        memory = (_gib(gpu.memory_total), _gib(gpu.memory_used), gpu.uuid) if gpu is not None else ("", "", "")
        table.add_row(str(each.number), each.name, *memory)
    cores = usable_cores()
    table.add_row("cpu:N", f"{cores} core{'s' if cores > 1 else ''}", "", "", "")
    console = Console()
    console.print(table)
    if inventory.reason is not None:
        console.print(f"No GPU: {inventory.reason}.", highlight=False)
    console.print(f"Without --devices, samestep run uses {_default(inventory)}.", highlight=False)


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
