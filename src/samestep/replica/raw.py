"""The operating system's functions as they were before anything here replaced them.

Code of this package uses these and never `os.…`, so that the private view is not applied to its own bookkeeping.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import stat as stat_of
from collections.abc import Callable
from typing import Any

access: Callable[..., bool] = os.access
chmod: Callable[..., None] = os.chmod
close: Callable[[int], None] = os.close
fstat: Callable[[int], os.stat_result] = os.fstat
fsync: Callable[[int], None] = os.fsync
getcwd: Callable[[], str] = os.getcwd
chdir: Callable[..., None] = os.chdir
link: Callable[..., None] = os.link
listdir: Callable[..., Any] = os.listdir
lstat: Callable[..., os.stat_result] = os.lstat
mkdir: Callable[..., None] = os.mkdir
makedirs: Callable[..., None] = os.makedirs  # only before anything is patched: it calls `os.mkdir` by name
open_fd: Callable[..., int] = os.open
open_file: Callable[..., Any] = builtins.open
pread: Callable[[int, int, int], bytes] = os.pread
read: Callable[[int, int], bytes] = os.read
readlink: Callable[..., str] = os.readlink
rename: Callable[..., None] = os.rename
replace: Callable[..., None] = os.replace
rmdir: Callable[..., None] = os.rmdir
scandir: Callable[..., Any] = os.scandir
stat: Callable[..., os.stat_result] = os.stat
symlink: Callable[..., None] = os.symlink
unlink: Callable[..., None] = os.unlink
urandom: Callable[[int], bytes] = os.urandom
utime: Callable[..., None] = os.utime
write: Callable[[int, bytes], int] = os.write

_REFLINK = 0x40049409  # FICLONE of Linux: share the blocks instead of copying them (btrfs, xfs, bcachefs)
_CHUNK = 1 << 20
_SNAPSHOT_LIMIT = 1 << 20


def lexists(path: str) -> bool:
    """Whether there is anything at `path`, a dangling link included."""
    try:
        lstat(path)
    except OSError:
        return False
    return True


def copy_stat(source: str, target: str) -> None:
    """Give `target` the permissions and times of `source`."""
    found = lstat(source)
    chmod(target, found.st_mode & 0o7777)
    utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def copy_file(source: str, target: str, limit: int | None = None) -> bool:
    """Copy a regular file with its times; over `limit` bytes only if the file system can share blocks.

    False, and no target, if it was too large.
    """
    origin = open_fd(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = fstat(origin).st_size
        copy = open_fd(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            done = _share_blocks(origin, copy)
            if not done and (limit is None or size <= limit):
                _copy_bytes(origin, copy)
                done = True
        finally:
            close(copy)
    finally:
        close(origin)
    if done:
        copy_stat(source, target)
    else:
        unlink(target)
    return done


def snapshot(descriptor: int) -> int:
    """A descriptor of a nameless copy of a small regular file, in place of `descriptor`; else `descriptor` itself.

    A file that is open shows what is written into it later. A replica that reads a counter which main writes anew
    a moment afterwards must get what was there when it opened the file.
    """
    found = fstat(descriptor)
    if not stat_of.S_ISREG(found.st_mode) or found.st_size > _SNAPSHOT_LIMIT or not hasattr(os, "memfd_create"):
        return descriptor
    try:
        content = pread(descriptor, found.st_size, 0)
        copy = os.memfd_create("samestep", os.MFD_CLOEXEC)
    except OSError:
        return descriptor  # not opened for reading; no memory or no descriptor left
    write(copy, content)
    os.lseek(copy, 0, os.SEEK_SET)
    with contextlib.suppress(OSError):
        os.fchmod(copy, stat_of.S_IMODE(found.st_mode))
        utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns))
    close(descriptor)
    return copy


def _share_blocks(origin: int, copy: int) -> bool:
    try:
        import fcntl

        fcntl.ioctl(copy, _REFLINK, origin)
    except (ImportError, OSError):
        return False
    return True


def _copy_bytes(origin: int, copy: int) -> None:
    while chunk := read(origin, _CHUNK):
        rest = memoryview(chunk)
        while rest:
            rest = rest[write(copy, bytes(rest)) :]


def directory_of(descriptor: int) -> str | None:
    """The path of an open directory, where the system can say it."""
    with contextlib.suppress(OSError):
        return readlink(f"/proc/self/fd/{descriptor}")
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import fcntl

        get_path = fcntl.F_GETPATH  # type: ignore[attr-defined]  # macOS only
        return os.fsdecode(fcntl.fcntl(descriptor, get_path, bytes(1024)).rstrip(b"\0"))
    return None


def make_parents(path: str, root: str) -> None:
    """Make the directories between `root`, which is there, and `path`."""
    parent = os.path.dirname(path)
    missing: list[str] = []
    while parent != root and not lexists(parent):
        missing.append(parent)
        parent = os.path.dirname(parent)
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):
            mkdir(each)
