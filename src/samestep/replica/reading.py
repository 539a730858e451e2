"""Functions of `os` and `open` that look at files, as a replica's script sees them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

from . import raw
from .listing import Entry, Listing
from .overlay import Opened, Overlay, fail
from .places import anchored, as_text


def is_bytes(path: Any) -> bool:
    """Whether answers about `path` are to be bytes, as the system gives them for a path in bytes."""
    return isinstance(os.fspath(path), bytes)


class ReadingFunctions:
    """Replacements that answer from the private view."""

    def __init__(self, overlay: Overlay) -> None:
        self.overlay = overlay

    def absolute(self, path: Any, dir_fd: Any = None) -> str | None:
        """`path` made absolute; None if the view does not concern it and the system is to be asked."""
        text = as_text(path)
        if not text or "\0" in text:
            return None
        result = self.overlay.logical(anchored(text, self.overlay.cwd, dir_fd))
        plain = os.path.normpath(result) if "/.." in result else result
        return None if plain in self.overlay.exempt else result

    def answer(
        self, ask: Callable[..., Any], path: Any, *args: Any, follow: bool = True, dir_fd: Any = None, **options: Any
    ) -> Any:
        """`ask(place, *args, **options)` with the real file behind `path`."""
        direct = options if dir_fd is None else {**options, "dir_fd": dir_fd}
        absolute = self.absolute(path, dir_fd)
        if absolute is None:
            return ask(path, *args, **direct)
        overlay = self.overlay
        if overlay.pristine():
            known, result = self._directly(lambda: ask(path, *args, **direct))
            if known:
                return result

        def look() -> Any:
            place = overlay.locate(overlay.canonical(absolute, follow))
            if place is None:
                fail(errno.ENOENT, absolute)
            return ask(place, *args, **options)

        try:
            return overlay.settled(look)
        except OSError as error:
            error.filename = path
            raise

    def _directly(self, ask: Callable[[], Any]) -> tuple[bool, Any]:
        """Ask the system itself; (False, …) if main has changed something meanwhile."""
        journal = self.overlay.journal
        try:
            result = ask()
        except OSError:
            if not journal.refresh():
                raise
            return False, None
        if not journal.refresh():
            return True, result
        if isinstance(result, Opened):
            result.close()
        return False, None

    # ---- the functions

    def stat(self, path: Any, *, dir_fd: Any = None, follow_symlinks: bool = True) -> os.stat_result:
        """`os.stat`."""
        if isinstance(path, int):
            return raw.stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        result: os.stat_result = self.answer(
            raw.stat, path, follow=follow_symlinks, dir_fd=dir_fd, follow_symlinks=follow_symlinks
        )
        return result

    def lstat(self, path: Any, *, dir_fd: Any = None) -> os.stat_result:
        """`os.lstat`."""
        result: os.stat_result = self.answer(raw.lstat, path, follow=False, dir_fd=dir_fd)
        return result

    def access(self, path: Any, mode: int, *, dir_fd: Any = None, **options: Any) -> bool:
        """`os.access`."""
        try:
            follow = bool(options.get("follow_symlinks", True))
            return bool(self.answer(raw.access, path, mode, follow=follow, dir_fd=dir_fd, **options))
        except OSError:
            return False

    def readlink(self, path: Any, *, dir_fd: Any = None) -> Any:
        """`os.readlink`."""
        result = self.answer(raw.readlink, path, follow=False, dir_fd=dir_fd)
        return os.fsencode(result) if is_bytes(path) else os.fsdecode(result)

    def listdir(self, path: Any = None) -> Any:
        """`os.listdir`."""
        path = "." if path is None else path
        absolute = self.absolute(path)
        if absolute is None or (self.overlay.pristine() and not self.overlay.changed):
            known, names = (True, raw.listdir(path)) if absolute is None else self._directly(lambda: raw.listdir(path))
            if known:
                return names
        assert absolute is not None
        names = self._names(path, absolute)
        return [os.fsencode(name) for name in names] if is_bytes(path) else names

    def scandir(self, path: Any = None) -> Any:
        """`os.scandir`."""
        path = "." if path is None else path
        absolute = self.absolute(path)
        if absolute is None:
            return raw.scandir(path)
        given = os.fspath(path)
        return Listing([Entry(given, name, self.stat) for name in self._names(path, absolute)])

    def _names(self, path: Any, absolute: str) -> list[str]:
        overlay = self.overlay
        try:
            return overlay.settled(lambda: overlay.names(overlay.canonical(absolute)))
        except OSError as error:
            error.filename = path
            raise

    def chdir(self, path: Any) -> None:
        """`os.chdir`."""
        absolute = self.absolute(path)
        if absolute is None:
            raw.chdir(path)
            self.overlay.cwd = self.overlay.logical(raw.getcwd())
            return
        self.answer(raw.chdir, path)
        self.overlay.cwd = self.overlay.canonical(absolute)

    def getcwd(self) -> str:
        """`os.getcwd`."""
        return self.overlay.cwd

    def getcwdb(self) -> bytes:
        """`os.getcwdb`."""
        return os.fsencode(self.overlay.cwd)

    def asking(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        """A replacement for any other function that asks about one path."""

        def replacement(path: Any, *args: Any, **options: Any) -> Any:
            follow = bool(options.get("follow_symlinks", True))
            return self.answer(ask, path, *args, follow=follow, **options)

        return replacement
