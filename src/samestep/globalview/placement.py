"""How the pieces that the ranks hold make up a global tensor."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, ClassVar

from samestep import world

_MOST_KEPT = 4096


class Placement:
    """Base of the placements.

    Attributes:
        plans: what calls on tensors placed so come to, kept by `samestep.globalview.plans`; only a `Shard` has some.
    """

    __slots__ = ("plans",)

    plans: dict[Any, Any]

    def __init__(self) -> None:
        self.plans = {}


class Shard(Placement):
    """Rank r holds a contiguous block of `sizes[r]` rows of dimension `dim`.

    Attributes:
        dim: the dimension that is cut, counted from the left, never negative.
        sizes: rows per rank; they may differ and may be 0.
        total: their sum, the global size of `dim`.
        full: whether every rank has at least one row.

    There is one object for each dimension and sizes, so that equal placements are the same object.
    """

    __slots__ = ("_moved", "dim", "full", "sizes", "total")
    _known: ClassVar[dict[tuple[int, tuple[int, ...]], Shard]] = {}

    dim: int
    sizes: tuple[int, ...]
    total: int
    full: bool
    _moved: dict[int, Shard]

    def __new__(cls, dim: int, sizes: tuple[int, ...]) -> Shard:
        key = (dim, tuple(sizes))
        found = cls._known.get(key)
        if found is None:
            found = super().__new__(cls)
            found.dim, found.sizes = key
            found.total = sum(key[1])
            found.full = 0 not in key[1]
            found.plans, found._moved = {}, {}
            if len(cls._known) >= _MOST_KEPT:  # a program with ever new sizes; those in use live on in their tensors
                cls._known.clear()
            cls._known[key] = found
        return found

    def __init__(self, dim: int, sizes: tuple[int, ...]) -> None:
        """Nothing: an object that is known keeps its plans."""

    def __reduce__(self) -> Any:
        return Shard, (self.dim, self.sizes)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
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
        if dim == self.dim:
            return self
        moved = self._moved.get(dim)
        if moved is None:
            moved = self._moved[dim] = Shard(dim, self.sizes)
        return moved


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
