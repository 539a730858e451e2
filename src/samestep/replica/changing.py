"""Functions of `os` and `open` that change files, as a replica's script sees them: all of it in the scratch copy."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from . import raw
from .overlay import Opened, Overlay, fail
from .reading import ReadingFunctions

_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NAMELESS = getattr(os, "O_TMPFILE", 0)


@contextmanager
def naming(path: Any, second: Any = None) -> Iterator[None]:
    """Let an error name the path as the script gave it."""
    try:
        yield
    except OSError as error:
        error.filename = path
        if second is not None:
            error.filename2 = second
        raise


def _open_for_answer(place: str, flags: int, mode: int = 0o777, **options: Any) -> Opened:
    return Opened(raw.open_fd(place, flags, mode, **options))


class ChangingFunctions:
    """Replacements that write to the scratch copy."""

    def __init__(self, overlay: Overlay, reading: ReadingFunctions) -> None:
        self.overlay = overlay
        self.reading = reading

    def _find(self, absolute: str, follow: bool) -> tuple[str, str | None]:
        """The canonical path and the real file behind it, as they stand for this rank."""
        overlay = self.overlay

        def look() -> tuple[str, str | None]:
            path = overlay.canonical(absolute, follow)
            return path, overlay.locate(path)

        return overlay.settled(look)

    def _parent(self, path: str) -> None:
        self.overlay.settled(lambda: self.overlay.parent_for_change(path))

    @staticmethod
    def _is_dir(place: str) -> bool:
        return stat.S_ISDIR(raw.lstat(place).st_mode)

    # ---- opening

    def open_fd(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: Any = None) -> int:
        """`os.open`."""
        absolute = self.reading.absolute(path, dir_fd)
        if absolute is None:
            return raw.open_fd(path, flags, mode, dir_fd=dir_fd)
        nofollow = flags & os.O_NOFOLLOW or (flags & os.O_CREAT and flags & os.O_EXCL)
        nameless = bool(_NAMELESS) and flags & _NAMELESS == _NAMELESS  # leaves no trace wherever it is
        if not flags & _CHANGES or nameless:
            answer = self.reading.answer
            return int(answer(_open_for_answer, path, flags, mode, follow=not nofollow, dir_fd=dir_fd))
        with naming(path):
            return self._open_to_change(absolute, flags, mode, follow=not nofollow)

    def _open_to_change(self, absolute: str, flags: int, mode: int, follow: bool) -> int:
        overlay = self.overlay
        path, place = self._find(absolute, follow)
        if place is None:
            if not flags & os.O_CREAT:
                fail(errno.ENOENT, path)
            self._parent(path)
            return raw.open_fd(overlay.make_room(path), flags, mode)
        if flags & os.O_CREAT and flags & os.O_EXCL:
            fail(errno.EEXIST, path)
        found = raw.lstat(place).st_mode
        if not stat.S_ISREG(found) or place == overlay.mirror(path):
            return raw.open_fd(place, flags, mode)  # a directory: the system says what is wrong
        if flags & (os.O_WRONLY | os.O_RDWR) and not raw.access(place, os.W_OK):
            fail(errno.EACCES, path)
        if flags & os.O_TRUNC:
            room = overlay.make_room(path)
            descriptor = raw.open_fd(room, flags | os.O_CREAT, stat.S_IMODE(found))
            raw.chmod(room, stat.S_IMODE(found))
            return descriptor
        return raw.open_fd(overlay.copy_up(path), flags, mode)

    def _opener(self, path: Any, flags: int) -> int:
        return self.open_fd(path, flags, 0o666)

    def open_file(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Callable[[str, int], int] | None = None,
    ) -> Any:
        """`open`. Through an opener, so that the file's `name` is the path that the script gave."""
        if opener is None and not isinstance(file, int):
            opener = self._opener
        return raw.open_file(file, mode, buffering, encoding, errors, newline, closefd, opener)

    def open_code(self, path: str) -> Any:
        """`io.open_code`."""
        return self.open_file(path, "rb")

    # ---- making

    def _new(self, path: Any, dir_fd: Any, make: Callable[[str], Any], direct: Callable[[], Any]) -> Any:
        absolute = self.reading.absolute(path, dir_fd)
        if absolute is None:
            return direct()
        with naming(path):
            found, place = self._find(absolute, follow=False)
            if place is not None:
                fail(errno.EEXIST, found)
            self._parent(found)
            result = make(self.overlay.make_room(found))
        self.overlay.forget()
        return result

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: Any = None) -> None:
        """`os.mkdir`."""
        self._new(path, dir_fd, lambda room: raw.mkdir(room, mode), lambda: raw.mkdir(path, mode, dir_fd=dir_fd))

    def symlink(self, src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: Any = None) -> None:
        """`os.symlink`."""
        self._new(dst, dir_fd, lambda room: raw.symlink(src, room), lambda: raw.symlink(src, dst, dir_fd=dir_fd))

    def making(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """A replacement for `os.mkfifo`, `os.mknod`."""

        def replacement(path: Any, *args: Any, dir_fd: Any = None, **options: Any) -> Any:
            given = options if dir_fd is None else {**options, "dir_fd": dir_fd}
            return self._new(
                path, dir_fd, lambda room: make(room, *args, **options), lambda: make(path, *args, **given)
            )

        return replacement

    # ---- removing

    def unlink(self, path: Any, *, dir_fd: Any = None) -> None:
        """`os.unlink`, `os.remove`."""
        absolute = self.reading.absolute(path, dir_fd)
        if absolute is None:
            raw.unlink(path, dir_fd=dir_fd)
            return
        with naming(path):
            found, place = self._find(absolute, follow=False)
            if place is None:
                fail(errno.ENOENT, found)
            if self._is_dir(place):
                fail(errno.EISDIR if os.uname().sysname == "Linux" else errno.EPERM, found)
            self._remove(found, raw.unlink)

    def rmdir(self, path: Any, *, dir_fd: Any = None) -> None:
        """`os.rmdir`."""
        absolute = self.reading.absolute(path, dir_fd)
        if absolute is None:
            raw.rmdir(path, dir_fd=dir_fd)
            return
        with naming(path):
            found, place = self._find(absolute, follow=False)
            if place is None:
                fail(errno.ENOENT, found)
            if self.overlay.settled(lambda: self.overlay.names(found)):
                fail(errno.ENOTEMPTY, found)
            self._remove(found, raw.rmdir)

    def _remove(self, path: str, remove: Callable[[str], None]) -> None:
        self._parent(path)
        mirrored = self.overlay.mirror(path)
        if raw.lexists(mirrored):
            remove(mirrored)
        self.overlay.hide(path)

    # ---- names

    def rename(self, src: Any, dst: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None) -> None:
        """`os.rename`, `os.replace`."""
        one, two = self.reading.absolute(src, src_dir_fd), self.reading.absolute(dst, dst_dir_fd)
        if one is None and two is None:
            raw.rename(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            return
        with naming(src, dst):
            source, found = self._find(one or os.path.join(self.overlay.cwd, os.fsdecode(src)), follow=False)
            target, there = self._find(two or os.path.join(self.overlay.cwd, os.fsdecode(dst)), follow=False)
            if found is None:
                fail(errno.ENOENT, source)
            if source != target:
                self._check_rename(source, found, target, there)
                self._rename(source, target)

    def _check_rename(self, source: str, found: str, target: str, there: str | None) -> None:
        directory = self._is_dir(found)
        if directory and target.startswith(source + "/"):
            fail(errno.EINVAL, source)
        if source.startswith(target + "/"):
            fail(errno.ENOTEMPTY, source)
        if there is not None:
            if self._is_dir(there) != directory:
                fail(errno.ENOTDIR if directory else errno.EISDIR, source)
            if directory and self.overlay.settled(lambda: self.overlay.names(target)):
                fail(errno.ENOTEMPTY, source)
        self._parent(source)
        self._parent(target)

    def _rename(self, source: str, target: str) -> None:
        overlay = self.overlay
        overlay.copy_up_tree(source)
        raw.rename(overlay.mirror(source), overlay.make_room(target))
        overlay.hide(source)
        overlay.changed.moved(target)
        # Not `hide(target)` for a file: it covers what was there by itself. A directory must not show old entries.
        if self._is_dir(overlay.mirror(target)):
            overlay.hide(target)

    def link(
        self, src: Any, dst: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None, follow_symlinks: bool = True
    ) -> None:
        """`os.link`."""
        one, two = self.reading.absolute(src, src_dir_fd), self.reading.absolute(dst, dst_dir_fd)
        if one is None or two is None:
            options = {"src_dir_fd": src_dir_fd, "dst_dir_fd": dst_dir_fd}
            raw.link(src, dst, follow_symlinks=follow_symlinks, **options)
            return
        with naming(src, dst):
            source, found = self._find(one, follow=False)
            target, there = self._find(two, follow=False)
            if found is None or there is not None:
                fail(errno.ENOENT if found is None else errno.EEXIST, source)
            if self._is_dir(found):
                fail(errno.EPERM, source)
            self._parent(target)
            raw.link(self.overlay.copy_up(source), self.overlay.make_room(target), follow_symlinks=False)

    # ---- contents and attributes

    def altering(self, alter: Callable[..., Any], follow: bool = True) -> Callable[..., Any]:
        """A replacement for a function that changes an existing file: `chmod`, `utime`, `truncate`, …"""

        def replacement(path: Any, *args: Any, dir_fd: Any = None, **options: Any) -> Any:
            absolute = self.reading.absolute(path, dir_fd)
            if absolute is None:
                return alter(path, *args, **(options if dir_fd is None else {**options, "dir_fd": dir_fd}))
            with naming(path):
                found, place = self._find(absolute, follow and bool(options.get("follow_symlinks", True)))
                if place is None:
                    fail(errno.ENOENT, found)
                return alter(self.overlay.copy_up(found), *args, **options)

        return replacement

    # ---- for libraries that open files by themselves

    def for_reading(self, path: Any) -> Any:
        """The real path to give to a library that reads `path` without Python's `open`."""
        absolute = self.reading.absolute(path)
        if absolute is None:
            return path
        with naming(path):
            found, place = self._find(absolute, follow=True)
            if place is None:
                fail(errno.ENOENT, found)
        return path if place == found else place

    def for_writing(self, path: Any, keep: bool = False) -> Any:
        """The real path to give to a library that writes `path`; with what is there before if `keep`."""
        absolute = self.reading.absolute(path)
        if absolute is None:
            return path
        with naming(path):
            found, place = self._find(absolute, follow=True)
            if place is None:
                self._parent(found)
            return self.overlay.copy_up(found) if place is not None and keep else self.overlay.make_room(found)
