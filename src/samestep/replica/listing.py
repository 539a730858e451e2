"""`os.scandir` over a directory whose entries come from several real ones."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import final

Stat = Callable[..., os.stat_result]


class Entry:
    """What `os.DirEntry` is, which Python code cannot make."""

    __slots__ = ("_lstat", "_stat", "name", "path")

    def __init__(self, directory: str | bytes, name: str, stat_of: Stat) -> None:
        binary = isinstance(directory, bytes)
        self.name: str | bytes = os.fsencode(name) if binary else name
        self.path: str | bytes = os.path.join(directory, self.name)  # type: ignore[arg-type]
        self._stat = stat_of
        self._lstat: os.stat_result | None = None

    def __fspath__(self) -> str | bytes:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def inode(self) -> int:
        """The inode number, of a symbolic link itself."""
        return self.stat(follow_symlinks=False).st_ino

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Like `os.stat` of the entry."""
        if self._lstat is None:
            self._lstat = self._stat(self.path, follow_symlinks=False)
        if follow_symlinks and stat.S_ISLNK(self._lstat.st_mode):
            return self._stat(self.path)
        return self._lstat

    def _mode(self, follow: bool) -> int:
        try:
            return self.stat(follow_symlinks=follow).st_mode
        except FileNotFoundError:  # a dangling link, or gone since: neither file nor directory
            return 0

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self._mode(follow_symlinks))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self._mode(follow_symlinks))

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return stat.S_ISLNK(self._mode(False))

    def is_junction(self) -> bool:
        """False: junctions are of Windows."""
        return False


@final
class Listing:
    """The iterator and context manager that `os.scandir` returns."""

    def __init__(self, entries: Sequence[object]) -> None:
        self._entries: Iterator[object] = iter(entries)

    def __iter__(self) -> Listing:
        return self

    def __next__(self) -> object:
        return next(self._entries)

    def __enter__(self) -> Listing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Yield no more entries."""
        self._entries = iter(())
