"""What the interpreter does to a program's objects when it ends, as far as it can be seen from outside.

A rank does not come to that end: taking torch and its process groups to pieces takes half a second, and some of it
crashes. But a file that was never closed is to have all that was written to it, and a `__del__` is to be heard.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

#: Files whose last bytes are written when they are closed, by module and class: they need not be loaded.
_CLOSED = (
    ("gzip", "GzipFile"),
    ("bz2", "BZ2File"),
    ("lzma", "LZMAFile"),
    ("zipfile", "ZipFile"),
    ("tarfile", "TarFile"),
)


def let_go() -> None:
    """Write out the files that are still open, then drop the script's modules, and with them what only they hold.

    In this order: the garbage collector may close a file before the buffer in front of it is emptied.
    """
    _write_out()
    for name in _scripts_modules():
        sys.modules.pop(name, None)
    gc.collect()


def _scripts_modules() -> Iterator[str]:
    """`__main__`, and the modules that are not installed."""
    yield "__main__"
    homes = [sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")]
    homes.append(os.path.dirname(os.path.dirname(__file__)))
    installed = tuple(each + os.sep for home in homes for each in (home, os.path.realpath(home)))
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        # Most of a thousand modules are found out by their names alone: links are looked up for the others.
        if (
            isinstance(file, str)
            and not file.startswith(installed)
            and not os.path.realpath(file).startswith(installed)
        ):
            yield name


def _write_out() -> None:
    """Text first, which becomes bytes; then what compresses them; then the buffers in front of the files."""
    groups: list[tuple[type[Any], ...]] = [
        (io.TextIOWrapper,),
        _loaded_closers(),
        (io.BufferedWriter, io.BufferedRandom),
    ]
    kinds = tuple(kind for group in groups for kind in group)
    things = [t for t in gc.get_objects() if issubclass(type(t), kinds) and t is not sys.stdout and t is not sys.stderr]
    for number, group in enumerate(groups):
        for thing in things:
            if issubclass(type(thing), group):
                with contextlib.suppress(Exception):
                    thing.close() if number == 1 else thing.flush()


def _loaded_closers() -> tuple[type[Any], ...]:
    modules = [(sys.modules.get(module), name) for module, name in _CLOSED]
    return tuple(getattr(module, name) for module, name in modules if module is not None)
