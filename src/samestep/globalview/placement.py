"""How the pieces that the ranks hold make up a global tensor."""

from __future__ import annotations

from itertools import accumulate

from samestep import world


class Placement:
    """Base of the placements."""

    __slots__ = ()


class Shard(Placement):
    """Rank r holds a contiguous block of `sizes[r]` rows of dimension `dim`.

    Attributes:
        dim: the dimension that is cut, counted from the left, never negative.
        sizes: rows per rank; they may differ and may be 0.
        total: their sum, the global size of `dim`.
    """

    __slots__ = ("dim", "sizes", "total")

    def __init__(self, dim: int, sizes: tuple[int, ...]) -> None:
        self.dim = dim
        self.sizes = sizes
        self.total = sum(sizes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shard) and self.dim == other.dim and self.sizes == other.sizes

    def __hash__(self) -> int:
        return hash((self.dim, self.sizes))

    def __repr__(self) -> str:
        return f"Shard({self.dim}, {self.sizes})"

    @property
    def rows(self) -> int:
        """This rank's number of rows."""
        return self.sizes[world.current().rank]

    @property
    def offset(self) -> int:
        """The global index of this rank's first row."""
        return list(accumulate((0, *self.sizes)))[world.current().rank]

    def at(self, dim: int) -> Shard:
        """The same rows at another dimension."""
        return self if dim == self.dim else Shard(dim, self.sizes)


class Partial(Placement):
    """The global value is the sum of what the ranks hold."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Partial()"


class Whole(Placement):
    """Every rank holds the global value.

    Only an in-place operation makes a `GlobalTensor` so: a Partial that was changed in a way that is not linear
    must stay the object that the script holds. Everything else that is whole is a plain tensor.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "Whole()"


PARTIAL = Partial()
WHOLE = Whole()
