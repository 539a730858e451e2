"""Which paths are left alone, and what a path given by a script means."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from . import raw

# Kernel file systems hold no results of a run.
_KERNEL = ("/dev", "/proc", "/sys")


def _shared_caches() -> list[str]:
    """Caches that are made for many processes at once, with locks or atomic renames.

    They hold what a library can make or fetch again, never results. Shared, they are filled once instead of once per
    rank, and their paths are real: compilers and memory-mapping readers outside Python open them.
    """
    home = os.path.expanduser("~")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    temporary = os.environ.get("TMPDIR") or "/tmp"
    user = os.path.basename(home)
    found = [
        os.environ.get("HF_HOME") or os.path.join(cache, "huggingface"),
        os.environ.get("TORCH_HOME") or os.path.join(cache, "torch"),
        os.environ.get("TORCH_EXTENSIONS_DIR") or os.path.join(cache, "torch_extensions"),
        os.environ.get("TRITON_CACHE_DIR") or os.path.join(home, ".triton"),
        os.environ.get("TORCHINDUCTOR_CACHE_DIR") or os.path.join(temporary, f"torchinductor_{user}"),
        os.environ.get("NUMBA_CACHE_DIR") or "",
        os.path.join(cache, "matplotlib"),
        os.path.join(cache, "pip"),
        os.path.join(home, ".nv"),
    ]
    return [os.path.realpath(each) for each in found if each]


class Exempt:
    """Knows the paths that the private view does not cover."""

    def __init__(self, run_dir: Path, caches: bool = True) -> None:
        self._roots = [*_KERNEL, str(run_dir), *(_shared_caches() if caches else [])]
        self._below = tuple(f"{root}/" for root in self._roots)

    def __contains__(self, path: str) -> bool:
        return path.startswith(self._below) or path in self._roots


def as_text(path: Any) -> str | None:
    """A path as text; None if it is an open descriptor or nothing a path can be."""
    if isinstance(path, str):
        return path
    if isinstance(path, int):
        return None
    try:
        return os.fsdecode(path)
    except (TypeError, ValueError):
        return None


def anchored(text: str, directory: str | None, descriptor: Any = None) -> str:
    """`text` as an absolute path: relative to an open directory if one is given, else to `directory`."""
    if text.startswith("/"):
        return text
    if isinstance(descriptor, int):
        base = raw.directory_of(descriptor)
        if base is not None:
            return os.path.join(base, text)
    return os.path.join(directory if directory is not None else raw.getcwd(), text)
