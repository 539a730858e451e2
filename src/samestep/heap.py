"""The memory of a rank on the CPU: what a step frees is there for the next step.

glibc gives large blocks back to the kernel as soon as they are freed, and the next step gets them again page by page,
each cleared on the way: a small convnet spent a quarter of its step so (5100 page faults, 41 instead of 29 ms).
`man 3 mallopt`, "dynamic mmap threshold": once a block of up to 32 MiB has been freed, blocks of its size are kept. So
one is freed here, which nobody has touched. Who sets `MALLOC_TRIM_THRESHOLD_` and the like has switched that off; other
allocators take no notice.
"""

from __future__ import annotations

import torch

#: Just below the largest block for which glibc does so: malloc adds a header, torch an alignment.
_BYTES = (32 << 20) - (64 << 10)


def keep_what_is_freed() -> None:
    """From now on, blocks of up to 32 MiB are used again, and up to 64 MiB of them are kept."""
    torch.empty(_BYTES, dtype=torch.uint8)
