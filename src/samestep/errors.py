"""The errors that Samestep itself raises."""

from __future__ import annotations


class SamestepError(Exception):
    """A request that cannot be met: what was asked, what was found, what to do.

    The command line prints the message alone (no traceback) and exits with code 2. In code
    (`samestep.launch`, `samestep.shard`, …) it is raised like any other exception.
    """


class PeerLost(BaseException):
    """Another rank is gone, so a collective of this rank cannot finish.

    Not an `Exception`: a broad `except Exception: continue` in a training loop must not swallow it,
    since nothing this rank does afterwards could be right. The launcher reports the rank that failed first,
    never this one.
    """
