"""Side effects of ranks other than main: none that anybody could see.

Every rank runs the whole script. `install` lets each believe that it is alone: files it writes stay private
(`files`), random numbers agree (`randomness`), input is main's (`stdin`), trackers report once (`trackers`).
"""

from __future__ import annotations

from pathlib import Path

from . import files, randomness, stdin, trackers

__all__ = ["install", "uninstall"]


def install(context_rank: int, world_size: int, run_dir: Path, store: stdin.Store | None, shared_seed: int) -> None:
    """Prepare this rank before the script's first line; rank 0 is main.

    `run_dir` is an empty directory that all ranks share, outside what the script works on. `shared_seed` is the same
    on all ranks and drawn from the system for this run. Without a store, input and terminal are left alone.
    """
    randomness.install(shared_seed)
    if world_size > 1 and store is not None:
        (stdin.install_replica if context_rank else stdin.install_main)(store)
    if context_rank:
        trackers.install_replica(run_dir / f"scratch{context_rank}")
        files.install_replica(run_dir, context_rank)
    elif world_size > 1:
        files.install_main(run_dir)


def uninstall() -> None:
    """Take everything back (for tests)."""
    files.uninstall()
    trackers.uninstall()
    stdin.uninstall()
    randomness.uninstall()
