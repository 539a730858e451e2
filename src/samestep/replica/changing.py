"""Functions of `os` and `open` that change files, as a replica's script sees them: all of it in the scratch copy."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

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


def _open_nameless(place: str, flags: int, mode: int = 0o777, **options: Any) -> Opened:
    return Opened(raw.open_fd(place, flags, mode, **options))


class Found(NamedTuple):
    """What is at a path. Main may change the real files at any moment: nothing is asked about `place` afterwards."""

    path: str  # canonical
    place: str | None  # the real file behind it; None: there is nothing
    mode: int  # its type and permissions
    writable: bool

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory, and no link to one."""
        return self.place is not None and stat.S_ISDIR(self.mode)


class ChangingFunctions:
    """Replacements that write to the scratch copy."""

    def __init__(self, overlay: Overlay, reading: ReadingFunctions) -> None:
        self.overlay = overlay
        self.reading = reading

    def _find(self, absolute: str, follow: bool) -> Found:
        """What is at a path, as it stands for this rank."""
        overlay = self.overlay

        def look() -> Found:
            path = overlay.canonical(absolute, follow)
            place = overlay.locate(path)
            if place is None:
                return Found(path, None, 0, False)
            return Found(path, place, raw.lstat(place).st_mode, raw.access(place, os.W_OK))

        return overlay.settled(look)

    def _parent(self, path: str) -> None:
        self.overlay.settled(lambda: self.overlay.parent_for_change(path))

    # ---- opening

    def open_fd(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: Any = None) -> int:
        """`os.open`."""
        absolute = self.reading.absolute(path, dir_fd)
        if absolute is None:
            return raw.open_fd(path, flags, mode, dir_fd=dir_fd)
        nofollow = flags & os.O_NOFOLLOW or (flags & os.O_CREAT and flags & os.O_EXCL)
        nameless = bool(_NAMELESS) and flags & _NAMELESS == _NAMELESS  # leaves no trace wherever it is
        if not flags & _CHANGES or nameless:
            opening = _open_nameless if nameless else self._open_to_read
            return int(self.reading.answer(opening, path, flags, mode, follow=not nofollow, dir_fd=dir_fd))
        with naming(path):
            return self._open_to_change(absolute, flags, mode, follow=not nofollow)

    def _open_to_read(self, place: Any, flags: int, mode: int = 0o777, **options: Any) -> Opened:
        descriptor = raw.open_fd(place, flags, mode, **options)
        # What this rank writes itself is to be seen by those that have the file open, as ever.
        own = os.fsdecode(place).startswith(self.overlay.root + "/")
        return Opened(descriptor if own else raw.snapshot(descriptor))

    def _open_to_change(self, absolute: str, flags: int, mode: int, follow: bool) -> int:
        overlay = self.overlay
        path, place, found, writable = self._find(absolute, follow)
        if place is None:
            if not flags & os.O_CREAT:
                fail(errno.ENOENT, path)
            self._parent(path)
            return raw.open_fd(overlay.make_room(path), flags, mode)
        if flags & os.O_CREAT and flags & os.O_EXCL:
            fail(errno.EEXIST, path)
        if stat.S_ISDIR(found):
            fail(errno.EISDIR, path)
        if not stat.S_ISREG(found) or place == overlay.mirror(path):
            return raw.open_fd(place, flags, mode)  # a device or a pipe, or a file of this rank's own
        if flags & (os.O_WRONLY | os.O_RDWR) and not writable:
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
            found = self._find(absolute, follow=False)
            if found.place is not None:
                fail(errno.EEXIST, found.path)
            self._parent(found.path)
            result = make(self.overlay.make_room(found.path))
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
            found = self._find(absolute, follow=False)
            if found.place is None:
                fail(errno.ENOENT, found.path)
            if found.is_directory:
                fail(errno.EISDIR if os.uname().sysname == "Linux" else errno.EPERM, found.path)
            self._remove(found.path, raw.unlink)

    def rmdir(self, path: Any, *, dir_fd: Any = None) -> None:
        """`os.rmdir`."""
        absolute = self.reading.absolute(path, dir_fd)
        if absolute is None:
            raw.rmdir(path, dir_fd=dir_fd)
            return
        with naming(path):
            found = self._find(absolute, follow=False)
            if found.place is None:
                fail(errno.ENOENT, found.path)
            if self.overlay.settled(lambda: self.overlay.names(found.path)):
                fail(errno.ENOTEMPTY, found.path)
            self._remove(found.path, raw.rmdir)

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
            source = self._find(one or os.path.join(self.overlay.cwd, os.fsdecode(src)), follow=False)
            target = self._find(two or os.path.join(self.overlay.cwd, os.fsdecode(dst)), follow=False)
            if source.place is None:
                fail(errno.ENOENT, source.path)
            if source.path != target.path:
                self._check_rename(source, target)
                self._rename(source.path, target.path)

    def _check_rename(self, source: Found, target: Found) -> None:
        directory = source.is_directory
        if directory and target.path.startswith(source.path + "/"):
            fail(errno.EINVAL, source.path)
        if source.path.startswith(target.path + "/"):
            fail(errno.ENOTEMPTY, source.path)
        if target.place is not None:
            if target.is_directory != directory:
                fail(errno.ENOTDIR if directory else errno.EISDIR, source.path)
            if directory and self.overlay.settled(lambda: self.overlay.names(target.path)):
                fail(errno.ENOTEMPTY, source.path)
        self._parent(source.path)
        self._parent(target.path)

    def _rename(self, source: str, target: str) -> None:
        overlay = self.overlay
        overlay.copy_up_tree(source)
        raw.rename(overlay.mirror(source), overlay.make_room(target))
        overlay.hide(source)
        overlay.changed.moved(target)
        # Not `hide(target)` for a file: it covers what was there by itself. A directory must not show old entries.
        if stat.S_ISDIR(raw.lstat(overlay.mirror(target)).st_mode):
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
            source, target = self._find(one, follow=False), self._find(two, follow=False)
            if source.place is None or target.place is not None:
                fail(errno.ENOENT if source.place is None else errno.EEXIST, source.path)
            if source.is_directory:
                fail(errno.EPERM, source.path)
            self._parent(target.path)
            raw.link(self.overlay.copy_up(source.path), self.overlay.make_room(target.path), follow_symlinks=False)

    # ---- contents and attributes

    def altering(self, alter: Callable[..., Any], follow: bool = True) -> Callable[..., Any]:
        """A replacement for a function that changes an existing file: `chmod`, `utime`, `truncate`, …"""

        def replacement(path: Any, *args: Any, dir_fd: Any = None, **options: Any) -> Any:
            absolute = self.reading.absolute(path, dir_fd)
            if absolute is None:
                return alter(path, *args, **(options if dir_fd is None else {**options, "dir_fd": dir_fd}))
            with naming(path):
                found = self._find(absolute, follow and bool(options.get("follow_symlinks", True)))
                if found.place is None:
                    fail(errno.ENOENT, found.path)
                return alter(self.overlay.copy_up(found.path), *args, **options)

        return replacement

    # ---- for libraries that open files by themselves

    def for_reading(self, path: Any) -> Any:
        """The real path to give to a library that reads `path` without Python's `open`."""
        absolute = self.reading.absolute(path)
        if absolute is None:
            return path
        with naming(path):
            found = self._find(absolute, follow=True)
            if found.place is None:
                fail(errno.ENOENT, found.path)
        return path if found.place == found.path else found.place

    def for_writing(self, path: Any, keep: bool = False) -> Any:
        """The real path to give to a library that writes `path`; with what is there before if `keep`."""
        absolute = self.reading.absolute(path)
        if absolute is None:
            return path
        with naming(path):
            found = self._find(absolute, follow=True)
            if found.place is None:
                self._parent(found.path)
            keeps = found.place is not None and keep
            return self.overlay.copy_up(found.path) if keeps else self.overlay.make_room(found.path)
