"""The command line: `samestep run`, `samestep devices`.

Whatever is asked wrongly ends with exit code 2 and one message on stderr, before torch is imported.
"""

from __future__ import annotations

import importlib.metadata
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, NoReturn

import typer
import typer.main

from samestep.commands import devices as devices_command
from samestep.devices.spec import resolve
from samestep.devices.waiting import meant_as_time, wait_limit
from samestep.errors import SamestepError
from samestep.launch.mode import check_mode, choose
from samestep.launch.script import ScriptTarget, check_target
from samestep.launch.words import say_what_is_the_scripts
from samestep.lint.command import lint
from samestep.notice import notice
from samestep.numerics import Numerics

TERMINAL = "-"
_USAGE_ERROR = 2
_WITH_VALUE = ("--devices", "--gpus", "--mode", "--batchnorm")

app = typer.Typer(
    help="The training step you wrote, on every device you have.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"samestep {_version()}")
        raise typer.Exit


@app.callback()
def samestep(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
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
            help="all, GPU numbers such as 1,3 or 0-3, free:2, UUIDs, PCI addresses, or cpu:2 (see docs/devices.md). "
            "Without it: SAMESTEP_DEVICES, else every GPU.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option(
            "--wait",
            metavar="[TIME]",
            help="Wait until GPUs are free (with --devices free), at most so long: 90s, 10m, 2h.",
            show_default=False,
        ),
    ] = None,
    oversubscribe: Annotated[
        bool,
        typer.Option("--oversubscribe", help="Let a GPU be named more than once (0,0): slow, for tests.", hidden=True),
    ] = False,
    module: Annotated[
        str | None,
        typer.Option("-m", metavar="MODULE", help="Run a module, as python -m does.", show_default=False),
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            metavar="MODE",
            help="same: one program with the numbers of one device. distributed: the script uses torch.distributed "
            "itself. auto: found out from the script.",
        ),
    ] = "auto",
    batchnorm: Annotated[
        str,
        typer.Option(
            "--batchnorm",
            metavar="KIND",
            help="Batch norm in training uses the statistics of the whole batch (global), or those of each device's "
            "rows (local): faster, and no longer the numbers of one device.",
        ),
    ] = "global",
    exact_random: Annotated[
        bool,
        typer.Option(
            "--exact-random",
            help="Dropout and noise inside modules, too, are those of one device, number for number on CPUs; slower.",
        ),
    ] = False,
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
    check_mode(mode)
    numbers = Numerics(batchnorm, exact_random)
    selection = resolve(devices, wait=wait_limit(wait), oversubscribe=oversubscribe)
    check_target(target)
    report = _check_explain(explain)
    from samestep.launch.obeying import look_ahead

    selection = look_ahead(target, selection)
    for text in selection.notes:
        notice(text)
    say_what_is_the_scripts(target, _long_options())
    _run_ranks(selection, target, report, mode, numbers)


def _commands() -> dict[str, Any]:
    """The commands by name."""
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def _long_options() -> list[str]:
    """Of `samestep run`."""
    return [name for option in _commands()["run"].params for name in option.opts if name.startswith("--")]


@app.command("devices")
def show_devices(
    spec: Annotated[
        str | None,
        typer.Argument(metavar="[SPEC]", help="Show what --devices SPEC would take: free:2, …", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    topology: Annotated[bool, typer.Option("--topology", help="Show how the GPUs are joined, pair by pair.")] = False,
) -> None:
    """Show the devices of this machine, and which of them a run can use."""
    devices_command.show_devices(spec, as_json, topology)


app.command("lint")(lint)


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

    Ours end at the script, at `-m MODULE` or at `--`. `--explain` takes the next word only if that ends in `.json`,
    `--wait` only if it is a time, or was meant to be one.
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
        if word == "--wait":
            ours.append("--wait=" + (rest.pop(0) if rest and meant_as_time(rest[0]) else ""))
        elif word == "--explain":
            ours.append("--explain=" + (rest.pop(0) if rest and rest[0].endswith(".json") else TERMINAL))
        elif word in _WITH_VALUE:
            ours += [word, *rest[:1]]
            rest = rest[1:]
        else:
            ours.append(word)
    return [*ours, "--", *rest] if rest else ours


def _dispatch(arguments: list[str]) -> int:
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
            _fail(message[0].lower() + message[1:].rstrip(".") + "; " + _advice(arguments))
        return 0 if not arguments else _USAGE_ERROR  # the help has been printed
    return result if isinstance(result, int) else 0


def _advice(arguments: list[str]) -> str:
    """What to do about words that are not understood."""
    first = arguments[0] if arguments else ""
    if first.endswith(".py") or (not first.startswith("-") and os.path.isfile(first)):
        return f"to run a script, write samestep run {first}"
    return f"see samestep {first + ' ' if first in _commands() else ''}--help"


def _run_ranks(selection: Any, target: ScriptTarget, explain: str | None, mode: str, numbers: Numerics) -> NoReturn:
    from samestep.launch.forms import run_chosen
    from samestep.launch.local import prepare
    from samestep.launch.obeying import run_obeying

    choice = choose(target, mode, selection)
    if explain is not None and choice.form != "same":
        notice("--explain has nothing to tell of a distributed program: it divides its work itself")
    prepare(selection)  # imports torch, once for all ranks

    def session() -> Any:
        if selection.kind == "xla":
            from samestep.xla.session import run_on_xla

            return partial(run_on_xla, target=target)
        from samestep.session import run_rank

        return partial(run_rank, target=target, explain=explain, choice=numbers)

    outcome = run_obeying(lambda chosen: run_chosen(choice, target, chosen, session), selection)
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
