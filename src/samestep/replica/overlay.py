"""A replica's private view of the file system: its own scratch copy over the state at the start of the run.

Three layers, the first that knows a path decides:

1. the scratch mirror (`root`), where everything lands that this rank makes or changes;
2. `hidden`: what this rank has removed. A directory that is made anew stays hidden here: its old entries are gone;
3. the real files, as they were before main changed them (`JournalReader.origin`).

All paths in here are absolute and canonical (no symbolic link in a parent), unless said otherwise.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

from . import raw
from .journal import JournalReader
from .order import Changed
from .places import Exempt

T = TypeVar("T")

_MAX_LINKS = 40
_CACHE_LIMIT = 4096


def fail(code: int, path: str) -> NoReturn:
    """Raise the OSError that the operating system would."""
    raise OSError(code, os.strerror(code), path)


class Overlay:
    """Finds, and prepares for writing, the real file behind a path."""

    def __init__(self, run_dir: Path, rank: int, caches: bool = True) -> None:
        scratch = run_dir / f"scratch{rank}"
        self.root = str(scratch / "root")
        self.temporary = str(scratch / "tmp")
        for each in (str(run_dir), str(scratch), self.root, self.temporary):
            if not raw.lexists(each):
                raw.mkdir(each)
        self.exempt = Exempt(run_dir, caches)
        self.journal = JournalReader(run_dir)
        self.hidden: set[str] = set()
        self.changed = Changed()
        self.cwd = raw.getcwd()
        self._start = raw.stat(self.root).st_mtime_ns
        self._directories: dict[str, str] = {}

    # ---- where things are

    def pristine(self) -> bool:
        """Whether this view still equals the real files: nothing written by this rank, nothing changed by main.

        Asked of the file system, so that a worker's writes are noticed by the process that forked it.
        """
        self.journal.refresh()
        return not self.journal.known and not self.hidden and raw.stat(self.root).st_mtime_ns == self._start

    def mirror(self, path: str) -> str:
        """The place of `path` in the scratch copy."""
        if path in self.exempt:
            return path
        return self.root + path if path != "/" else self.root

    def logical(self, path: str) -> str:
        """The path that the script knows for a real one: the inverse of `mirror`."""
        if path.startswith(self.root + "/"):
            return path[len(self.root) :]
        return path

    def locate(self, path: str) -> str | None:
        """The real file behind `path`; None if for this rank there is nothing."""
        if path in self.exempt:
            return path if raw.lexists(path) else None
        mirrored = self.mirror(path)
        if raw.lexists(mirrored):
            return mirrored
        origin = self.origin(path)
        return origin if origin is not None and raw.lexists(origin) else None

    def origin(self, path: str) -> str | None:
        """Where the state at the start is, unless this rank has hidden it."""
        if self.hidden:
            above = path
            while above != "/":
                if above in self.hidden:
                    return None
                above = os.path.dirname(above)
        return self.journal.origin(path)

    def settled(self, action: Callable[[], T]) -> T:
        """The result of `action`, repeated if main has changed something in the meantime."""
        while True:
            if self.journal.refresh():
                self._directories.clear()
            try:
                result = action()
            except OSError:
                if self.journal.refresh():
                    self._directories.clear()
                    continue
                raise
            if not self.journal.refresh():
                return result
            self._directories.clear()
            if isinstance(result, Opened):
                result.close()

    # ---- paths

    def canonical(self, path: str, follow: bool = True) -> str:
        """`path` with the symbolic links of this view resolved; its last part may be missing."""
        head, _, tail = path.rstrip("/").rpartition("/")
        if not tail or tail in (".", ".."):
            return self._walk(path, follow)
        directory = self._directories.get(head)
        if directory is None:
            directory = self._walk(head, True)
            place = self.locate(directory)
            if place is None:
                fail(errno.ENOENT, path)
            if not stat.S_ISDIR(raw.lstat(place).st_mode):
                fail(errno.ENOTDIR, path)
            if len(self._directories) >= _CACHE_LIMIT:
                self._directories.clear()
            self._directories[head] = directory
        result = os.path.join(directory, tail)
        if follow and result not in self.exempt:
            place = self.locate(result)
            if place is not None and stat.S_ISLNK(raw.lstat(place).st_mode):
                return self._walk(result, True)
        return result

    def _walk(self, path: str, follow: bool) -> str:
        todo = [part for part in reversed(path.split("/")) if part not in ("", ".")]
        done, links = "/", 0
        while todo:
            part = todo.pop()
            if part == "..":
                done = os.path.dirname(done)
                continue
            found = os.path.join(done, part)
            if found in self.exempt:
                return os.path.join(found, *reversed(todo))
            place = self.locate(found)
            if place is None:
                if todo:
                    fail(errno.ENOENT, path)
                return found
            mode = raw.lstat(place).st_mode
            if stat.S_ISLNK(mode) and (todo or follow):
                links += 1
                if links > _MAX_LINKS:
                    fail(errno.ELOOP, path)
                target = raw.readlink(place)
                if target.startswith("/"):
                    done = "/"
                todo.extend(each for each in reversed(target.split("/")) if each not in ("", "."))
                continue
            if todo and not stat.S_ISDIR(mode):
                fail(errno.ENOTDIR, path)
            done = found
        return done

    def forget(self) -> None:
        """Forget resolved directories: a directory or a link has come or gone."""
        self._directories.clear()

    # ---- directories

    def names(self, path: str) -> list[str]:
        """The entries of a directory: in the system's order, or by name once this rank has changed it."""
        place = self.locate(path)
        if place is None:
            fail(errno.ENOENT, path)
        if not stat.S_ISDIR(raw.lstat(place).st_mode):
            fail(errno.ENOTDIR, path)
        found: dict[str, None] = {}
        if self.origin(path) is not None:
            found.update(dict.fromkeys(self.journal.orders.get(path, ())))
            # Not `place`: the stand-in of a directory that main has removed holds no entries.
            if raw.lexists(path) and stat.S_ISDIR(raw.lstat(path).st_mode):
                found.update(dict.fromkeys(raw.listdir(path)))
            found.update(dict.fromkeys(sorted(self.journal.children.get(path, ()))))
        mirrored = self.mirror(path)
        if raw.lexists(mirrored):
            found.update(dict.fromkeys(raw.listdir(mirrored)))
        mixed = bool(self.hidden) or place == mirrored or path in self.journal.children
        result = list(found)
        if mixed:
            result = [name for name in result if self.locate(os.path.join(path, name)) is not None]
        return sorted(result) if path in self.changed else result

    def parent_for_change(self, path: str) -> None:
        """Raise what the system raises if an entry of `path`'s directory cannot be made or removed."""
        parent = os.path.dirname(path)
        place = self.locate(parent)
        if place is None:
            fail(errno.ENOENT, path)
        if not stat.S_ISDIR(raw.stat(place).st_mode):
            fail(errno.ENOTDIR, path)
        if not raw.access(place, os.W_OK | os.X_OK):
            fail(errno.EACCES, path)
        self.changed.entry(path)

    # ---- changes

    def make_room(self, path: str) -> str:
        """The place of `path` in the scratch copy, its directories made like the real ones."""
        mirrored = self.mirror(path)
        if mirrored == path:
            return path
        missing: list[str] = []
        parent = os.path.dirname(path)
        while parent != "/" and not raw.lexists(self.mirror(parent)):
            missing.append(parent)
            parent = os.path.dirname(parent)
        for each in reversed(missing):
            self._shadow_directory(each)
        return mirrored

    def _shadow_directory(self, path: str) -> None:
        mirrored = self.mirror(path)
        try:
            raw.mkdir(mirrored)
        except FileExistsError:
            return

        def like_the_origin() -> None:
            origin = self.origin(path)
            if origin is not None and raw.lexists(origin):
                raw.copy_stat(origin, mirrored)

        self.settled(like_the_origin)

    def copy_up(self, path: str) -> str:
        """Bring what is at `path` into the scratch copy, to be changed there; a directory without its entries."""
        mirrored = self.make_room(path)
        if not raw.lexists(mirrored):
            # Main may change the original at any moment: what was copied counts once nothing is told about it.
            self.settled(lambda: self._copy(path, mirrored))
        return mirrored

    def _copy(self, path: str, mirrored: str) -> None:
        self._discard(mirrored)  # of an attempt that main has disturbed
        origin = self.origin(path)
        if origin is None:
            fail(errno.ENOENT, path)
        mode = raw.lstat(origin).st_mode
        if stat.S_ISLNK(mode):
            raw.symlink(raw.readlink(origin), mirrored)
        elif stat.S_ISREG(mode):
            raw.copy_file(origin, mirrored)
        elif not stat.S_ISDIR(mode):
            fail(errno.EPERM, path)  # a device or a pipe has no copy
        else:
            raw.mkdir(mirrored)
            raw.copy_stat(origin, mirrored)

    @staticmethod
    def _discard(mirrored: str) -> None:
        if raw.lexists(mirrored):
            (raw.rmdir if stat.S_ISDIR(raw.lstat(mirrored).st_mode) else raw.unlink)(mirrored)

    def copy_up_tree(self, path: str) -> None:
        """`copy_up` of a directory with everything below it."""
        mirrored = self.copy_up(path)
        if stat.S_ISDIR(raw.lstat(mirrored).st_mode):
            for name in self.settled(lambda: self.names(path)):
                self.copy_up_tree(os.path.join(path, name))

    def hide(self, path: str) -> None:
        """Let the state at the start be gone for this rank, at and below `path`."""
        if path not in self.exempt and self.settled(lambda: self._was_there(path)):
            self.hidden.add(path)
        self.forget()

    def _was_there(self, path: str) -> bool:
        origin = self.journal.origin(path)
        return origin is not None and raw.lexists(origin)


class Opened(int):
    """A descriptor that `Overlay.settled` closes if the answer turns out to be stale."""

    def close(self) -> None:
        """Close it."""
        raw.close(int(self))
