"""Running the user's script in a rank as `python SCRIPT ARGS` and `python -m MODULE ARGS` run it."""

from __future__ import annotations

import builtins
import difflib
import importlib.machinery
import importlib.util
import io
import os
import pkgutil
import runpy
import stat
import sys
import types
import zipfile
from dataclasses import dataclass
from typing import Any

from samestep.errors import SamestepError


@dataclass(frozen=True)
class ScriptTarget:
    """What to run: a script (also a directory or zip file with a `__main__.py`) or a module, and its arguments."""

    path: str | None
    module: str | None
    args: tuple[str, ...] = ()


def check_target(target: ScriptTarget) -> None:
    """Refuse, before anything is started, a target that Python could not run."""
    if target.module is not None:
        _check_module(target.module)
    elif target.path is not None:
        _check_path(target.path)
    else:
        raise SamestepError("no script given; write samestep run SCRIPT [ARGS…] or samestep run -m MODULE [ARGS…]")


def run_target(target: ScriptTarget) -> None:
    """Run the target as the main program of this process; returns, or raises, as it does."""
    main = _fresh_main()
    if target.module is not None:
        _set_arguments("-m", target, ["-m", target.module])
        _set_first_path(os.getcwd())
        _run_module(target.module, True)
        return
    path = target.path
    assert path is not None, "check_target has refused this"
    _set_arguments(path, target, [path])
    if _has_main(path):
        _set_first_path(_absolute(path), always=True)
        _run_module("__main__", False)
        return
    filename = _absolute(path)
    _set_first_path(os.path.dirname(os.path.realpath(path)))
    main.__dict__.update(__file__=filename, __cached__=None, __loader__=_loader(filename))
    exec(_compiled(filename), main.__dict__)  # what `python SCRIPT` does: the script is meant to be executed


def _check_module(name: str) -> None:
    top = name.partition(".")[0]
    place = sys.path[0] if sys.path else None
    _set_first_path(os.getcwd())
    try:
        spec = importlib.util.find_spec(top) if top else None
        # What is in a package is left to Python: it could only be found out by importing the package here.
        found = spec is not None and (top == name or spec.submodule_search_locations is not None)
    except (ImportError, ValueError):
        found = False
    finally:
        if place is not None:
            _set_first_path(place)
    if not found:
        hint = f"; for a file write samestep run {name}" if name.endswith(".py") else ""
        raise SamestepError(f"no module named {name!r} is installed or in {os.getcwd()}{hint}")


def _check_path(path: str) -> None:
    if path == "-":
        raise SamestepError("a script on stdin can be read only once, not by every rank; save it to a file first")
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        reason = "" if isinstance(error, FileNotFoundError) else f" ({error.strerror})"
        raise SamestepError(f"there is no script {path!r}{reason}{_similar(path)}") from None
    except ValueError:
        raise SamestepError(f"{path!r} is not a file name") from None
    if stat.S_ISDIR(mode):
        if not _has_main(path):
            raise SamestepError(f"{path!r} is a directory without a __main__.py; name the script in it")
        return
    if not stat.S_ISREG(mode):
        raise SamestepError(f"{path!r} is not a regular file, so not every rank could read it; save it to a file first")
    if not os.access(path, os.R_OK):
        raise SamestepError(f"the script {path!r} may not be read (permission denied)")
    if zipfile.is_zipfile(path) and not _has_main(path):
        raise SamestepError(f"{path!r} is a zip file without a __main__.py")


def _similar(path: str) -> str:
    folder, name = os.path.split(path)
    try:
        scripts = [entry for entry in os.listdir(folder or ".") if entry.endswith(".py")]
    except OSError:
        return f": there is no directory {folder!r}"
    close = difflib.get_close_matches(name, scripts, n=1)
    return f"; did you mean {os.path.join(folder, close[0])}?" if close else f" in {os.path.abspath(folder or '.')}"


def _has_main(path: str) -> bool:
    """Whether `path` is a directory or zip file with a `__main__` (Python then runs that)."""
    if os.path.isdir(path):
        return any(os.path.isfile(os.path.join(path, name)) for name in ("__main__.py", "__main__.pyc"))
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name in archive.namelist() for name in ("__main__.py", "__main__.pyc"))


_launchers_main: list[types.ModuleType] = []  # kept: a module's globals die with it, and ours are still in use


def _fresh_main() -> types.ModuleType:
    """An empty `__main__` with what the interpreter puts into it."""
    previous = sys.modules.get("__main__")
    if previous is not None:
        _launchers_main.append(previous)
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if sys.version_info < (3, 14):
        main.__dict__["__annotations__"] = {}  # noqa: RUF063 (to be set, not to be read)
    sys.modules["__main__"] = main
    return main


def _set_arguments(first: str, target: ScriptTarget, original: list[str]) -> None:
    sys.argv[:] = [first, *target.args]
    sys.orig_argv[:] = [sys.executable, *original, *target.args]


def _set_first_path(directory: str, *, always: bool = False) -> None:
    """Put a directory where the interpreter puts the script's; there is no such place under `python -P`."""
    safe = getattr(sys.flags, "safe_path", False)
    if not safe and sys.path:
        sys.path[0] = directory
    elif always or not safe:
        sys.path.insert(0, directory)


def _absolute(path: str) -> str:
    """`__file__` of a script: made absolute, but not normalised, as the interpreter does it."""
    return os.path.join(os.getcwd(), path)


def _loader(filename: str) -> Any:
    if filename.endswith(".pyc"):
        return importlib.machinery.SourcelessFileLoader("__main__", filename)
    return importlib.machinery.SourceFileLoader("__main__", filename)


def _compiled(filename: str) -> types.CodeType:
    with io.open_code(filename) as file:
        code: types.CodeType | None = pkgutil.read_code(file)  # None unless the file is compiled already
        if code is None:
            file.seek(0)
            code = compile(file.read(), filename, "exec", dont_inherit=True)
    return code


def _run_module(name: str, alter_arguments: bool) -> None:
    # What `python -m` itself calls. Its frames are in Python's own tracebacks, too.
    getattr(runpy, "_run_module_as_main")(name, alter_arguments)  # noqa: B009 (private, so not in the type stubs)
