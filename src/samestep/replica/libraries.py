"""Libraries that open files in C, C++ or Rust, where replacing `open` does not reach.

A table says which argument of which function is the path; the function is given the real path instead.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from .patching import Patches, after_import


class Redirect(Protocol):
    """Gives the real path for one that the script names."""

    def for_reading(self, path: Any) -> Any:
        """To read it."""

    def for_writing(self, path: Any, keep: bool = False) -> Any:
        """To write it, with what is there before if `keep`."""


class Foreign(NamedTuple):
    """A function that opens a file by itself."""

    module: str
    name: str
    position: int
    keyword: str
    use: str  # "r" reads; "w" makes anew; "a" changes what is there


_FUNCTIONS = (
    Foreign("torch", "save", 1, "f", "w"),
    Foreign("torch", "load", 0, "f", "r"),
    Foreign("torch", "from_file", 0, "filename", "a"),
    Foreign("torch.jit", "save", 1, "f", "w"),
    Foreign("torch.jit", "load", 0, "f", "r"),
    Foreign("torch.export", "save", 1, "f", "w"),
    Foreign("torch.export", "load", 0, "f", "r"),
    Foreign("safetensors", "safe_open", 0, "filename", "r"),
    Foreign("safetensors", "serialize_file", 1, "filename", "w"),
    Foreign("safetensors.torch", "safe_open", 0, "filename", "r"),
    Foreign("safetensors.torch", "serialize_file", 1, "filename", "w"),
    Foreign("safetensors.numpy", "safe_open", 0, "filename", "r"),
    Foreign("safetensors.numpy", "serialize_file", 1, "filename", "w"),
    Foreign("cv2", "imread", 0, "filename", "r"),
    Foreign("cv2", "imwrite", 0, "filename", "w"),
    Foreign("torchvision.io", "write_png", 1, "filename", "w"),
    Foreign("torchvision.io", "write_jpeg", 1, "filename", "w"),
    Foreign("torchvision.io", "write_file", 0, "filename", "w"),
    Foreign("torchvision.io", "read_file", 0, "path", "r"),
    Foreign("torchvision.io", "read_image", 0, "path", "r"),
    Foreign("torchvision.io", "decode_image", 0, "input", "r"),
    Foreign("soundfile", "read", 0, "file", "r"),
    Foreign("soundfile", "write", 0, "file", "w"),
    Foreign("pyarrow.parquet", "write_table", 1, "where", "w"),
    Foreign("pyarrow.parquet", "read_table", 0, "source", "r"),
)
_METHODS = (Foreign("h5py", "File", 1, "name", "mode"),)
_SQLITE_COMPANIONS = ("-journal", "-wal", "-shm")


def is_path(value: Any) -> bool:
    """Whether an argument is a path, not an open file."""
    return isinstance(value, (str, bytes, os.PathLike))


def redirected(function: Callable[..., Any], redirect: Redirect, entry: Foreign) -> Callable[..., Any]:
    """`function`, given the real path."""

    @functools.wraps(function)
    def replacement(*args: Any, **options: Any) -> Any:
        given = options.get(entry.keyword) if entry.keyword in options else None
        if entry.keyword not in options and len(args) > entry.position:
            given = args[entry.position]
        if not is_path(given):
            return function(*args, **options)
        use = entry.use
        if use == "mode":
            mode = options.get("mode", args[2] if len(args) > 2 else "r")
            use = "r" if mode == "r" else "w" if mode == "w" else "a"
        place = redirect.for_reading(given) if use == "r" else redirect.for_writing(given, keep=use == "a")
        if entry.keyword in options:
            options[entry.keyword] = place
        else:
            args = (*args[: entry.position], place, *args[entry.position + 1 :])
        return function(*args, **options)

    return replacement


def _connecting(connect: Callable[..., Any], redirect: Redirect) -> Callable[..., Any]:
    @functools.wraps(connect)
    def replacement(database: Any, *args: Any, **options: Any) -> Any:
        text = os.fsdecode(database) if is_path(database) else ""
        if not text or text == ":memory:" or options.get("uri"):
            return connect(database, *args, **options)
        for suffix in _SQLITE_COMPANIONS:
            if os.path.exists(text + suffix):
                redirect.for_writing(text + suffix, keep=True)
        try:
            place = redirect.for_writing(text, keep=True)
        except OSError:
            place = os.path.join(text, "")  # let sqlite3 raise its own error
        return connect(place, *args, **options)

    return replacement


def install(patches: Patches, redirect: Redirect) -> None:
    """Redirect the functions of the table, in modules that are loaded and those that will be."""
    actions: dict[str, Callable[[ModuleType], None]] = {}
    entries: dict[str, list[Foreign]] = {}
    for entry in _FUNCTIONS:
        entries.setdefault(entry.module, []).append(entry)

    def redirect_all(module: ModuleType) -> None:
        for entry in entries[module.__name__]:
            function = getattr(module, entry.name, None)
            if function is not None:
                patches.replace(module, entry.name, redirected(function, redirect, entry))

    def redirect_method(module: ModuleType) -> None:
        for entry in _METHODS:
            if entry.module == module.__name__:
                owner = getattr(module, entry.name)
                patches.set(owner, "__init__", redirected(owner.__init__, redirect, entry))

    def redirect_sqlite(module: ModuleType) -> None:
        patches.replace(module, "connect", _connecting(module.connect, redirect))

    actions.update(dict.fromkeys(entries, redirect_all))
    actions["h5py"] = redirect_method
    actions["sqlite3"] = redirect_sqlite
    after_import(patches, actions)
