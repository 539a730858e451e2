"""Sums and gathers between the ranks, below and above the sizes at which another way is taken."""

from __future__ import annotations

import pickle
import platform
import resource

import torch

from inside.claims import case, same, true
from samestep import exchange
from samestep.world import current


def _bytes() -> list[int]:
    """Sizes of one rank's part: small, around the limits of the exchange (both), and large."""
    limits = [exchange.MOST_BYTES, exchange.MOST_SENT_BYTES // max(1, current().size - 1) // 16 * 16]
    return sorted({16, 1008, 3 << 20, *(limit + more for limit in limits for more in (-16, 0, 16))})


def _part(rank: int, length: int, dtype: torch.dtype) -> torch.Tensor:
    """Rank r's numbers: whole and small, so that every sum of them is exact."""
    return ((torch.arange(length) + rank) % 5).to(dtype)


def check_freed_memory_is_used_again() -> None:
    """With glibc, as its manual says; without, there is nothing to see. The first check: what frees more alters it."""
    if platform.libc_ver()[0] != "glibc":
        return
    faults = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        [torch.ones(1 << 20, dtype=torch.uint8) for _ in range(20)]
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    true(faults[-1] < 500, f"20 MiB took {faults} page faults")


def check_sums_of_every_size_and_dtype() -> None:
    here = current()
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int16,
        torch.complex64,
    ):
        for size in _bytes():
            with case((dtype, size)):
                length = size // dtype.itemsize
                truth = torch.stack([_part(r, length, dtype) for r in range(here.size)]).sum(0).to(dtype)
                same(here.all_reduce_(_part(here.rank, length, dtype)), truth)


def check_sums_are_the_same_on_every_rank_to_the_last_bit() -> None:
    here = current()
    for size in _bytes():
        torch.manual_seed(here.rank)
        total = here.all_reduce_(torch.randn(size // 4))
        with case(size):
            true(len(set(here.all_gather_objects(total.numpy().tobytes()))) == 1, "bits differ")


def check_gathers_of_uneven_and_empty_parts() -> None:
    here = current()
    for size in _bytes():
        for lengths in (
            [size // 4] * here.size,
            [size // 4 * (r != 1) for r in range(here.size)],
            [r * 3 for r in range(here.size)],
        ):
            with case((size, lengths)):
                truth = torch.cat([_part(r, n, torch.float32) for r, n in enumerate(lengths)])
                same(here.all_gather(_part(here.rank, lengths[here.rank], torch.float32), 0, lengths), truth)


def check_objects_of_every_size() -> None:
    here = current()
    overhead = len(pickle.dumps(b"\0" * 1000)) - 1000
    for size in (0, 900, 1016 - overhead, 1017 - overhead, 5000, exchange.MOST_BYTES + 1):
        mine = bytes([here.rank]) * (size if here.rank else 1)
        with case(size):
            true(
                here.all_gather_objects(mine) == [bytes([r]) * (size if r else 1) for r in range(here.size)],
                "not the objects",
            )


def check_many_on_their_way_at_a_time() -> None:
    here = current()
    sizes = _bytes()
    summed = [_part(here.rank, size // 4, torch.float32) for size in sizes]
    in_buckets = [tensor.clone() for tensor in summed]
    started = []
    for tensor, other in zip(summed, in_buckets, strict=True):
        started.append(
            (
                here.start_bucket_sum(other),
                here.start_script_sum(tensor),
                here.start_gather(_part(here.rank, 5, torch.int64)),
            )
        )
    for size, tensor, other, (bucket, script, gathered) in reversed(
        list(zip(sizes, summed, in_buckets, started, strict=True))
    ):
        truth = torch.stack([_part(r, size // 4, torch.float32) for r in range(here.size)]).sum(0)
        with case(size):
            same(gathered(), torch.stack([_part(r, 5, torch.int64) for r in range(here.size)]), "gathered")
            here.finish_sum(script)
            here.finish_sum(bucket)
            same(tensor, truth, "script")
            same(other, truth, "bucket")
