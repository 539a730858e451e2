"""What main has changed in the file system since the start of the run, told to the other ranks.

Main writes a line *before* it creates, changes or removes something: the path, and where a copy of what was there
is kept (`null` if nothing was there). The first line about a path counts: it tells the state at the start of the run.
Before the first change in a directory it also writes in what order the system lists it.
So a replica that has looked at the real file, and then finds no line about it, has seen the file as it was.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import stat
from pathlib import Path
from typing import Any

from . import raw
from .order import Changed

_COPY_LIMIT = 64 << 20  # larger originals are kept only where it costs no copying
_LINK_LIMIT = 1 << 30
_ORDER_LIMIT = 20_000  # entries; the order of larger directories is not told
_ORDER = "order"
_NAME = "journal"


def absent_above(known: dict[str, str | None], path: str) -> bool:
    """Whether a directory above `path` was not there at the start: then nothing below it was."""
    while (parent := os.path.dirname(path)) != path:
        path = parent
        if path in known and known[path] is None:
            return True
    return False


class JournalWriter:
    """Main's side."""

    def __init__(self, run_dir: Path) -> None:
        self._kept = str(run_dir / "originals")
        with contextlib.suppress(FileExistsError):
            raw.mkdir(self._kept)
        self._fd = raw.open_fd(str(run_dir / _NAME), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._known: dict[str, str | None] = {}
        self._listed: set[str] = set()
        self._numbers = itertools.count()
        self.changed = Changed()

    def close(self) -> None:
        """Stop writing (tests only)."""
        raw.close(self._fd)

    def about_to_create(self, path: str) -> None:
        """Say that main makes `path`, if there is nothing."""
        if not raw.lexists(path):
            self.changed.entry(path)
            self._note(path, None)

    def about_to_change(self, path: str, whole_inode: bool = True) -> None:
        """Say that main makes or changes `path`; `whole_inode=False`: it only removes this name of it."""
        found = None
        with contextlib.suppress(OSError):
            found = raw.lstat(path)
        if found is None or not whole_inode:
            self.changed.entry(path)
        if path in self._known:
            self._unshare(path, found)
            return
        if absent_above(self._known, path):
            return
        if found is None:
            self._note(path, None)
            return
        self._note(path, self._keep(path, found, may_link=not whole_inode))

    def about_to_move(self, path: str) -> None:
        """Say that `path`, with all below it if it is a directory, gets another name."""
        self.changed.entry(path)
        self.about_to_change(path)
        if absent_above(self._known, path) or self._known.get(path) is None:
            return
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(raw.lstat(path).st_mode):
                for name in raw.listdir(path):
                    self.about_to_move(os.path.join(path, name))

    def about_to_arrive(self, source: str, target: str) -> None:
        """Say what comes to be at and below `target`, which gets what is at `source`."""
        self.about_to_change(target, whole_inode=False)
        if self._known.get(target) is None:
            return  # absent at the start, and so is all below it
        # A directory of that name was there once: what arrives must not be taken for its old entries.
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(raw.lstat(source).st_mode):
                for name in raw.listdir(source):
                    self.about_to_arrive(os.path.join(source, name), os.path.join(target, name))

    def _note(self, path: str, kept: str | None) -> None:
        if path in self._known or absent_above(self._known, path):
            return
        self._note_order(os.path.dirname(path))
        self._write([path, kept])
        self._known[path] = kept

    def _note_order(self, directory: str) -> None:
        """Before the first change in a directory: the order in which the system lists it."""
        if directory in self._listed:
            return
        self._listed.add(directory)
        if self._known.get(directory, "") is not None:
            with contextlib.suppress(OSError):
                names = raw.listdir(directory)
                if 1 < len(names) <= _ORDER_LIMIT:
                    self._write([directory, names, _ORDER])

    def _write(self, line: list[Any]) -> None:
        # One write with O_APPEND: lines of several threads or workers of main do not mix.
        raw.write(self._fd, (json.dumps(line) + "\n").encode())

    def _unshare(self, path: str, found: os.stat_result | None) -> None:
        """Copy an original that was kept as a link, if it is still there: the removal did not come about."""
        kept = self._known[path]
        if found is None or kept is None or kept == path or not stat.S_ISREG(found.st_mode):
            return
        with contextlib.suppress(OSError):
            if os.path.samestat(found, raw.lstat(kept)) and raw.copy_file(path, f"{kept}.copy", _COPY_LIMIT):
                raw.replace(f"{kept}.copy", kept)

    def _keep(self, path: str, found: os.stat_result, may_link: bool) -> str:
        """Keep what is at `path` and say where; `path` itself if that would cost too much."""
        target = os.path.join(self._kept, f"{os.getpid()}-{next(self._numbers)}")
        with contextlib.suppress(OSError):
            if stat.S_ISLNK(found.st_mode):
                raw.symlink(raw.readlink(path), target)
                return target
            if stat.S_ISDIR(found.st_mode):
                raw.mkdir(target)
                raw.copy_stat(path, target)
                return target
            if not stat.S_ISREG(found.st_mode):
                return path
            # A link costs nothing, but shares later changes made through another name of the file.
            if may_link and found.st_nlink == 1 and found.st_size < _LINK_LIMIT:
                with contextlib.suppress(OSError):
                    raw.link(path, target)
                    return target
            if raw.copy_file(path, target, _COPY_LIMIT):
                return target
            raw.link(path, target)  # better than nothing: right unless the contents are changed in place
            return target
        return path


class JournalReader:
    """A replica's side."""

    def __init__(self, run_dir: Path) -> None:
        self._fd = raw.open_fd(str(run_dir / _NAME), os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._offset = 0
        self.known: dict[str, str | None] = {}
        self.orders: dict[str, list[str]] = {}
        self.children: dict[str, set[str]] = {}

    def close(self) -> None:
        """Stop reading (tests only)."""
        raw.close(self._fd)

    def refresh(self) -> bool:
        """Read what is new; True if there was something.

        Without a lock, which a thread could hold while another forks: two threads that read the same lines
        do the same thing twice.
        """
        size = raw.fstat(self._fd).st_size
        offset = self._offset
        if size <= offset:
            return False
        text = raw.pread(self._fd, size - offset, offset)
        text = text[: text.rfind(b"\n") + 1]
        for line in text.splitlines():
            path, kept, *rest = json.loads(line)
            if rest:
                self.orders.setdefault(path, kept)
                continue
            self.children.setdefault(os.path.dirname(path), set()).add(os.path.basename(path))
            self.known.setdefault(path, kept)
        self._offset = offset + len(text)
        return bool(text)

    def origin(self, path: str) -> str | None:
        """Where to find what was at `path` at the start of the run; None if there was nothing."""
        known = self.known
        if not known:
            return path
        if path in known:
            return None if absent_above(known, path) else known[path]
        above = path
        while (parent := os.path.dirname(above)) != above:
            above = parent
            if above in known:
                kept = known[above]
                if kept is None or not stat.S_ISDIR(raw.lstat(kept).st_mode):
                    return None
        return path
