"""Main's side: the real functions, preceded by a line in the journal when they change something."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from . import raw
from .journal import JournalWriter
from .listing import Listing
from .places import Exempt, anchored, as_text

_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_WRITES = frozenset("wax+")


def _name_of(entry: Any) -> Any:
    return entry.name


class RecordingFunctions:
    """Replacements that do what the originals do, after telling the other ranks."""

    def __init__(self, journal: JournalWriter, exempt: Exempt) -> None:
        self.journal = journal
        self.exempt = exempt

    def canonical(self, path: Any, dir_fd: Any = None, follow: bool = True) -> str | None:
        """The path free of symbolic links, those of the last part only if `follow`; None if nobody needs to know."""
        text = as_text(path)
        if not text or "\0" in text:
            return None
        try:
            absolute = anchored(text, None, dir_fd)
        except OSError:
            return None
        if absolute in self.exempt:
            return None
        if follow:
            result = os.path.realpath(absolute)
        else:
            head, tail = os.path.split(absolute.rstrip("/") or "/")
            result = os.path.join(os.path.realpath(head), tail) if tail != ".." else os.path.realpath(absolute)
        return None if result in self.exempt else result

    def will_change(self, path: Any, dir_fd: Any = None, follow: bool = True) -> None:
        """Tell that the contents of `path` change, or that it is made."""
        found = self.canonical(path, dir_fd, follow)
        if found is not None:
            self.journal.about_to_change(found)

    # ---- opening

    def open_file(self, file: Any, mode: Any = "r", *args: Any, **options: Any) -> Any:
        """`open`."""
        if isinstance(mode, str) and not isinstance(file, int) and not _WRITES.isdisjoint(mode):
            self.will_change(file)
        return raw.open_file(file, mode, *args, **options)

    def open_fd(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: Any = None) -> int:
        """`os.open`."""
        if flags & _CHANGES and not flags & os.O_DIRECTORY:
            self.will_change(path, dir_fd, not flags & os.O_NOFOLLOW)
        return raw.open_fd(path, flags, mode, dir_fd=dir_fd)

    # ---- making and altering

    def making(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """`mkdir` and its like: something new at a path."""

        @functools.wraps(make)
        def replacement(path: Any, *args: Any, **options: Any) -> Any:
            found = self.canonical(path, options.get("dir_fd"), follow=False)
            if found is not None:
                self.journal.about_to_create(found)
            return make(path, *args, **options)

        return replacement

    def altering(self, alter: Callable[..., Any], follow: bool = True) -> Callable[..., Any]:
        """`truncate`, `chmod` and their like."""

        @functools.wraps(alter)
        def replacement(path: Any, *args: Any, **options: Any) -> Any:
            follows = follow and bool(options.get("follow_symlinks", True))
            self.will_change(path, options.get("dir_fd"), follows)
            return alter(path, *args, **options)

        return replacement

    def symlink(self, src: Any, dst: Any, *args: Any, **options: Any) -> None:
        """`os.symlink`."""
        found = self.canonical(dst, options.get("dir_fd"), follow=False)
        if found is not None:
            self.journal.about_to_create(found)
        raw.symlink(src, dst, *args, **options)

    def link(self, src: Any, dst: Any, **options: Any) -> None:
        """`os.link`. The old name is kept too: from now on it can be written to through the new one."""
        self.will_change(src, options.get("src_dir_fd"), follow=False)
        found = self.canonical(dst, options.get("dst_dir_fd"), follow=False)
        if found is not None:
            self.journal.about_to_create(found)
        raw.link(src, dst, **options)

    # ---- removing and renaming

    def removing(self, remove: Callable[..., Any]) -> Callable[..., Any]:
        """`unlink`, `rmdir`."""

        @functools.wraps(remove)
        def replacement(path: Any, *, dir_fd: Any = None) -> None:
            found = self.canonical(path, dir_fd, follow=False)
            if found is not None and raw.lexists(found):
                self.journal.about_to_change(found, whole_inode=False)
            remove(path, dir_fd=dir_fd)

        return replacement

    def renaming(self, rename: Callable[..., Any]) -> Callable[..., Any]:
        """`rename`, `replace`."""

        @functools.wraps(rename)
        def replacement(src: Any, dst: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None) -> None:
            source = self.canonical(src, src_dir_fd, follow=False)
            target = self.canonical(dst, dst_dir_fd, follow=False)
            if source is not None and raw.lexists(source):
                self.journal.about_to_move(source)
            if target is not None:
                self.journal.about_to_arrive(source or os.path.abspath(os.fsdecode(src)), target)
            rename(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            if target is not None:
                self.journal.changed.moved(target)

        return replacement

    # ---- listing: by name once this run has changed the directory, so that all ranks list it alike

    def _changed(self, path: Any) -> bool:
        if not self.journal.changed or isinstance(path, int):
            return False
        found = self.canonical("." if path is None else path)
        return found is not None and found in self.journal.changed

    def listdir(self, path: Any = None) -> Any:
        """`os.listdir`."""
        names = raw.listdir(path)
        return sorted(names) if self._changed(path) else names

    def scandir(self, path: Any = None) -> Any:
        """`os.scandir`."""
        if not self._changed(path):
            return raw.scandir(path)
        with raw.scandir(path) as entries:
            found: list[Any] = list(entries)
        return Listing(sorted(found, key=_name_of))

    # ---- for libraries that open files by themselves

    def for_reading(self, path: Any) -> Any:
        """The path itself."""
        return path

    def for_writing(self, path: Any, keep: bool = False) -> Any:
        """The path itself, told to the other ranks."""
        self.will_change(path)
        return path
