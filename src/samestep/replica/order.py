"""Which directories are listed by name.

The system lists a directory in an order of its own, which depends on where it is, so a replica's copy could be listed
otherwise than main's. Directories whose entries the run has changed are therefore listed by name, on all ranks;
all others stay in the system's order, as for a plain process. Kept by each rank for itself: ranks run the same script,
so at the same line they have changed the same directories.
"""

from __future__ import annotations

import os


class Changed:
    """The directories whose entries this rank has changed."""

    def __init__(self) -> None:
        self._directories: set[str] = set()
        self._moved: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._directories)

    def entry(self, path: str) -> None:
        """`path` is made or removed."""
        self._directories.add(os.path.dirname(path))

    def moved(self, path: str) -> None:
        """`path`, perhaps a directory with others below, has got this name."""
        self._moved.add(path)

    def __contains__(self, path: str) -> bool:
        if path in self._directories:
            return True
        above = path
        while self._moved and above != os.path.dirname(above):
            if above in self._moved:
                return True
            above = os.path.dirname(above)
        return False
