"""Files that ranks other than main write: seen by that rank alone, in a private copy under the run's directory.

Main works on the real files and keeps a journal of what it makes and changes. Every other rank sees the file system as
it was at the start of the run, plus its own changes, whether main runs ahead or behind. So `os.makedirs("out")`
succeeds on every rank, `os.path.exists` answers as for a lone process, and of all the ranks' writing only main's is
found afterwards.

A directory in which the run has made or removed something is listed by name, on main too: all ranks must get the same
order, and the system's (which it is for all other directories) depends on where the files are.

Covered are Python's own functions and those of the libraries named in `libraries`. Not covered: programs that the
script starts, other libraries that open files in C, memory shared through a file, and processes that are spawned (not
forked). Files over 64 MiB that were there before and that main overwrites in place are not kept for the others.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from . import libraries
from .changing import ChangingFunctions
from .journal import JournalWriter
from .overlay import Overlay
from .patching import Patches
from .places import Exempt
from .reading import ReadingFunctions
from .recording import RecordingFunctions

_MAKE = ("mkfifo", "mknod")
_ALTER = ("truncate", "chmod", "chown", "utime", "setxattr", "removexattr", "chflags")
_ALTER_LINK = ("lchown", "lchmod", "lchflags")
_ASK = ("statvfs", "pathconf", "getxattr", "listxattr")

_installed: Patches | None = None


def install_main(run_dir: Path, share_caches: bool = True) -> None:
    """Let this rank's changes be told to the others. Call before the script starts; `run_dir` is there."""
    global _installed
    if _installed is not None:
        return
    run_dir = Path(os.path.realpath(run_dir))
    journal = JournalWriter(run_dir)
    recording = RecordingFunctions(journal, Exempt(run_dir, share_caches))
    patches = _installed = Patches()
    patches.on_undo(journal.close)
    _patch_main(patches, recording)
    libraries.install(patches, recording)
    patches.sweep()


def install_replica(run_dir: Path, rank: int, share_caches: bool = True) -> None:
    """Give this rank its private view. Call before the script starts; `run_dir` is there, one for all ranks."""
    global _installed
    if _installed is not None:
        return
    run_dir = Path(os.path.realpath(run_dir))
    overlay = Overlay(run_dir, rank, share_caches)
    reading = ReadingFunctions(overlay)
    changing = ChangingFunctions(overlay, reading)
    patches = _installed = Patches()
    patches.on_undo(overlay.journal.close)
    _patch_reading(patches, reading)
    _patch_changing(patches, changing)
    _patch_temporary(patches, overlay.temporary)
    libraries.install(patches, changing)
    patches.sweep()


def uninstall() -> None:
    """Take everything back (for tests; the scratch copies stay where they are)."""
    global _installed
    if _installed is not None:
        patches, _installed = _installed, None
        patches.undo()


def _patch_open(patches: Patches, open_file: Any) -> None:
    patches.replace(builtins, "open", open_file)
    patches.set(io, "open", open_file)


def _patch_main(patches: Patches, recording: RecordingFunctions) -> None:
    _patch_open(patches, recording.open_file)
    patches.replace(os, "open", recording.open_fd)
    for name in ("mkdir", *_MAKE):
        if hasattr(os, name):
            patches.replace(os, name, recording.making(getattr(os, name)))
    for name in (*_ALTER, *_ALTER_LINK):
        if hasattr(os, name):
            patches.replace(os, name, recording.altering(getattr(os, name), follow=name in _ALTER))
    for name in ("unlink", "remove", "rmdir"):
        patches.replace(os, name, recording.removing(getattr(os, name)))
    for name in ("rename", "replace"):
        patches.replace(os, name, recording.renaming(getattr(os, name)))
    for name in ("symlink", "link", "listdir", "scandir"):
        patches.replace(os, name, getattr(recording, name))


def _patch_reading(patches: Patches, reading: ReadingFunctions) -> None:
    for name in ("stat", "lstat", "access", "readlink", "listdir", "scandir", "chdir", "getcwd", "getcwdb"):
        patches.replace(os, name, getattr(reading, name))
    for name in _ASK:
        if hasattr(os, name):
            patches.replace(os, name, reading.asking(getattr(os, name)))


def _patch_changing(patches: Patches, changing: ChangingFunctions) -> None:
    _patch_open(patches, changing.open_file)
    patches.replace(io, "open_code", changing.open_code)
    patches.replace(os, "open", changing.open_fd)
    for name in ("mkdir", "symlink", "link", "unlink", "rmdir", "rename"):
        patches.replace(os, name, getattr(changing, name))
    patches.replace(os, "remove", changing.unlink)
    patches.replace(os, "replace", changing.rename)
    for name in _MAKE:
        if hasattr(os, name):
            patches.replace(os, name, changing.making(getattr(os, name)))
    for name in (*_ALTER, *_ALTER_LINK):
        if hasattr(os, name):
            patches.replace(os, name, changing.altering(getattr(os, name), follow=name in _ALTER))
    # It walks by open directories, whose entries are those of one layer; by paths it sees the merged view.
    patches.set(shutil, "_use_fd_functions", False)


def _patch_temporary(patches: Patches, directory: str) -> None:
    """Temporary files in a real directory of the rank's own: compilers and sockets are given their paths.

    `tempfile.gettempdir()` stays: what is there under a fixed name must be found.
    """
    original: Any = getattr(tempfile, "_sanitize_params", None)
    if original is None:
        return

    def sanitize(prefix: Any, suffix: Any, dir: Any) -> Any:
        result = original(prefix, suffix, dir)
        if dir is None:
            place = directory if isinstance(result[0], str) else os.fsencode(directory)
            return (*result[:2], place, *result[3:])
        return result

    patches.set(tempfile, "_sanitize_params", sanitize)
