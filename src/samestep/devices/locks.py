"""A lock per GPU, so that two runs do not both find the same one free.

A lock is a `flock` on a file that all users of the machine share. It lasts as long as a process of the run does, and
goes with the last of them, however that ends: there are no stale locks. A run that was told which GPUs to use shares
its locks with others that were told the same; a run that took what was free has them alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from samestep.errors import SamestepError

DIRECTORY_VARIABLE = "SAMESTEP_LOCK_DIR"
_EVERYONE_MAY_ADD = 0o1777
_EVERYONE_MAY_WRITE = 0o666
_ENTRY_BYTES = 4096
_TRIES, _PAUSE_S = 8, 0.01

_held: dict[str, int] = {}


def directory() -> Path:
    """Where the locks are: SAMESTEP_LOCK_DIR, else in memory that all users share."""
    given = os.environ.get(DIRECTORY_VARIABLE)
    if given:
        return Path(given)
    shared = Path("/dev/shm")  # not /tmp: systems clean that up under a long run, or make one for each user
    return (shared if shared.is_dir() else Path(tempfile.gettempdir())) / "samestep-locks"


def hold(identities: Sequence[str]) -> list[str | None]:
    """Mark devices as used by this run, beside others if need be; who else uses each (None: nobody that is known)."""
    others: list[str | None] = []
    for identity in identities:
        if identity in _held:
            others.append(None)
            continue
        try:
            descriptor = _open(identity)
        except OSError:
            others.append(None)  # the user has said which GPUs; that locks cannot be written does not forbid it
            continue
        alone = _lock(descriptor, fcntl.LOCK_EX)
        other = None if alone else _holder(descriptor)
        # To share means to let go for a moment, in which a run that looks for free GPUs may take this one alone.
        if _lock(descriptor, fcntl.LOCK_SH):
            _keep(identity, descriptor, write=alone)
        else:
            other = _holder(descriptor)
            os.close(descriptor)
        others.append(other)
    return others


def take(identity: str) -> str | None:
    """Have a device alone. None if that succeeded (or it was held by this run already), else who has it.

    Raises `SamestepError` if locks cannot be written: what is free for everybody is safe for nobody.
    """
    if identity in _held:
        return None
    try:
        descriptor = _open(identity)
    except OSError as error:
        raise SamestepError(
            f"GPUs cannot be locked, so that another run might take the same ones: {error}; name a directory that all "
            f"users may write to in {DIRECTORY_VARIABLE}"
        ) from error
    for _ in range(_TRIES):
        if _lock(descriptor, fcntl.LOCK_EX):
            _keep(identity, descriptor, write=True)
            return None
        time.sleep(random.uniform(0, _PAUSE_S))  # somebody may only have been looking
    found = _holder(descriptor)
    os.close(descriptor)
    return found


def holder(identity: str) -> str | None:
    """Who uses a device, without taking it; None if nobody does, or it cannot be found out."""
    if identity in _held:
        return None
    try:
        descriptor = os.open(_path(identity), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return None if _lock(descriptor, fcntl.LOCK_EX) else _holder(descriptor)
    finally:
        os.close(descriptor)


def release(identities: Sequence[str]) -> None:
    """Let go of devices. A process that was forked since keeps them: only the last one that ends lets go."""
    for identity in identities:
        descriptor = _held.pop(identity, None)
        if descriptor is not None:
            os.close(descriptor)  # never LOCK_UN, which would take the lock from the forked ones, too


def _path(identity: str) -> Path:
    return directory() / (re.sub(r"[^0-9A-Za-z._-]", "_", identity) + ".lock")


def _open(identity: str) -> int:
    """The lock's file, open; made for everybody if it is not there."""
    folder = directory()
    if not folder.is_dir():
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            folder.chmod(_EVERYONE_MAY_ADD)  # not by mkdir's mode, which the umask cuts
    path = _path(identity)
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    # Opened without O_CREAT first: systems forbid that for another user's file in a directory that everybody writes to.
    with contextlib.suppress(FileNotFoundError):
        try:
            return os.open(path, os.O_RDWR | flags)
        except PermissionError:
            return os.open(path, os.O_RDONLY | flags)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, _EVERYONE_MAY_WRITE)
    except FileExistsError:
        return os.open(path, os.O_RDWR | flags)
    os.fchmod(descriptor, _EVERYONE_MAY_WRITE)
    return descriptor


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _keep(identity: str, descriptor: int, *, write: bool) -> None:
    _held[identity] = descriptor
    if write:
        entry = {"pid": os.getpid(), "user": _user(), "since": int(time.time()), "command": " ".join(sys.argv)[:1000]}
        with contextlib.suppress(OSError):  # another user's file that only they may write: the lock holds all the same
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(entry).encode(), 0)


def _holder(descriptor: int) -> str:
    """The run that has the lock, as its entry describes it."""
    try:
        entry = json.loads(os.pread(descriptor, _ENTRY_BYTES, 0))
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry["since"]))
        return f"another samestep run (pid {int(entry['pid'])}, {entry['user']}, since {since})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another samestep run"


def _user() -> str:
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):
        return f"user {os.getuid()}"
