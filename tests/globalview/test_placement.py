"""The arithmetic of placements, without ranks: for any shape and any cut the pieces make up the whole again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from samestep import world
from samestep.globalview.placement import Shard
from samestep.globalview.rules.indexing import _sliced
from samestep.globalview.rules.shape import reshaped

SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=4)
FEW = settings(max_examples=200, deadline=None)


@contextmanager
def rank_of(rank: int, size: int) -> Iterator[None]:
    """Within: this process is that rank, as far as arithmetic goes."""
    before = world.current()
    world.install(world.World(rank, size))
    try:
        yield
    finally:
        world.install(before)


@st.composite
def cuts(draw: st.DrawFn, rows: int) -> tuple[int, ...]:
    """Any way to hold `rows` rows on 1 to 4 ranks, empty blocks included."""
    ranks = draw(st.integers(1, 4))
    edges = sorted(draw(st.lists(st.integers(0, rows), min_size=ranks - 1, max_size=ranks - 1)))
    return tuple(b - a for a, b in zip([0, *edges], [*edges, rows], strict=True))


def blocks(tensor: torch.Tensor, placement: Shard) -> list[torch.Tensor]:
    """What each rank holds."""
    return list(tensor.split(list(placement.sizes), placement.dim))


@FEW
@given(rows=st.integers(0, 1000), size=st.integers(1, 9))
def test_split_deals_every_row_once_and_evenly(rows: int, size: int) -> None:
    sizes = world.World(0, size).split(rows)
    assert len(sizes) == size
    assert sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1
    assert list(sizes) == sorted(sizes, reverse=True), "the longer blocks come first"


@FEW
@given(data=st.data(), rows=st.integers(0, 12))
def test_blocks_follow_each_other_without_gap(data: st.DataObject, rows: int) -> None:
    sizes = data.draw(cuts(rows))
    covered: list[int] = []
    for rank in range(len(sizes)):
        with rank_of(rank, len(sizes)):
            place = Shard(0, sizes)
            covered += range(place.offset, place.offset + place.rows)
    assert covered == list(range(rows))


def factorizations(total: int) -> st.SearchStrategy[list[int]]:
    """Shapes of `total` elements, some with one dimension left out as -1."""

    @st.composite
    def draw_shape(draw: st.DrawFn) -> list[int]:
        rest, shape = total, []
        for _ in range(draw(st.integers(0, 3))):
            part = draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
            shape.append(part)
            rest //= part
        shape.append(rest)
        if draw(st.booleans()):
            shape[draw(st.integers(0, len(shape) - 1))] = -1
        return shape

    return draw_shape()


@settings(max_examples=600, deadline=None)
@given(data=st.data(), shape=SHAPES)
def test_reshaped_pieces_make_up_the_reshaped_whole(data: st.DataObject, shape: list[int]) -> None:
    dim = data.draw(st.integers(0, len(shape) - 1))
    sizes = data.draw(cuts(shape[dim]))
    whole = torch.arange(torch.Size(shape).numel()).view(shape)
    new = data.draw(factorizations(whole.numel()))
    placement = Shard(dim, sizes)
    pieces, targets = [], []
    for rank, block in enumerate(blocks(whole, placement)):
        with rank_of(rank, len(sizes)):
            found = reshaped(shape, placement, new)
            if found is not None:
                local_shape, target = found
                pieces.append(block.reshape(local_shape))
                targets.append(target)
                assert pieces[-1].size(target.dim) == target.rows
    assert len(pieces) in (0, len(sizes)), "the ranks disagree whether a rule applies"
    if pieces:
        assert len(set(targets)) == 1
        assert torch.equal(torch.cat(pieces, targets[0].dim), whole.view(new))


@FEW
@given(data=st.data(), shape=SHAPES)
def test_merging_the_rows_with_what_follows_stays_sharded(data: st.DataObject, shape: list[int]) -> None:
    """(N, T, V) → (N·T, V), which every language model does, must not gather."""
    sizes = data.draw(cuts(shape[0]))
    merged = data.draw(st.integers(0, len(shape) - 1))
    new = [-1, *shape[merged + 1 :]]
    with rank_of(0, len(sizes)):
        found = reshaped(shape, Shard(0, sizes), new)
    assert found is not None
    inner = torch.Size(shape[1 : merged + 1]).numel()
    assert found[1] == Shard(0, tuple(n * inner for n in sizes))


@FEW
@given(shape=SHAPES, wrong=st.integers(2, 7))
def test_reshaped_refuses_what_torch_refuses(shape: list[int], wrong: int) -> None:
    total = torch.Size(shape).numel()
    place = Shard(0, (shape[0],))
    assert reshaped(shape, place, [total * wrong]) is None
    assert reshaped(shape, place, [-1, -1]) is None
    assume(total % wrong)
    assert reshaped(shape, place, [-1, wrong]) is None


@settings(max_examples=600, deadline=None)
@given(
    data=st.data(),
    rows=st.integers(0, 12),
    start=st.none() | st.integers(-15, 15),
    stop=st.none() | st.integers(-15, 15),
    step=st.sampled_from([None, 1, 2, 3]),
)
def test_slices_of_pieces_make_up_the_slice(
    data: st.DataObject, rows: int, start: int | None, stop: int | None, step: int | None
) -> None:
    sizes = data.draw(cuts(rows))
    item = slice(start, stop, step)
    whole = torch.arange(rows)
    pieces, targets = [], []
    for rank, block in enumerate(blocks(whole, Shard(0, sizes))):
        with rank_of(rank, len(sizes)):
            found = _sliced(item, rows, Shard(0, sizes), 2)
            if found is not None:
                pieces.append(block[found[0]])
                targets.append(found[1])
                assert found[1].dim == 2
                assert pieces[-1].size(0) == found[1].rows
    assert len(pieces) in (0, len(sizes)), "the ranks disagree whether a rule applies"
    if pieces:
        assert len(set(targets)) == 1
        assert torch.equal(torch.cat(pieces), whole[item])
    else:
        assert step in (2, 3), "a slice without a step must not gather"
