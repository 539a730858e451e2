"""Random operations inside a region, drawn for the whole batch: each rank takes its rows of what one device draws.

A random operation on a rank's rows is carried out on tensors of the global shape instead, from the script's own
stream, and the rank keeps its block. So the numbers are those of one device, and the stream stands afterwards where
one device's stands. Strides are those of one device too, since they decide which element gets which number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from samestep import torch_private, world
from samestep.errors import SamestepError
from samestep.globalview.placement import Shard
from samestep.parallel.draws import (
    Along,
    Draw,
    Draws,
    Layout,
    Length,
    Look,
    NotByRow,
    Size,
    leaves,
    look,
    mapped,
    place_now,
)
from samestep.parallel.in_step import meet
from samestep.parallel.streams import own_stream, same_state, torch_state

#: Operations whose first tensor gives the shape only, what it contains does not count.
_SHAPE_OF_FIRST = {
    "rand_like",
    "randn_like",
    "randint_like",
    "uniform",
    "normal_functional",
    "exponential",
    "cauchy",
    "log_normal",
    "geometric",
    "random",
    *("uniform_", "normal_", "exponential_", "cauchy_", "log_normal_", "geometric_", "random_", "bernoulli_"),
}
#: The others that draw; tensors that they take are gathered first.
_OTHERS = {
    *("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson", "binomial"),
    *("_standard_gamma", "_sample_dirichlet", "rrelu_with_noise", "rrelu_with_noise_", "native_dropout"),
}


class Drawing(TorchDispatchMode):
    """Within: random operations are looked at, and carried out for the whole batch if a placement is given.

    Args:
        placement: of the batch; None: operations are carried out as they are.
        draws: what is known about them.
        learn: called at a draw that is not known; it may make it known.
        ordered: whether everything that the region does is seen from its beginning.
        marked: whether floating-point draws give numbers that tell their position instead of random ones.
    """

    def __init__(
        self,
        placement: Shard | None = None,
        draws: Draws | None = None,
        *,
        learn: Callable[[], None] | None = None,
        ordered: bool = True,
        marked: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.placement, self.draws, self.learn = placement, draws or Draws(), learn
        self.ordered, self.marked = ordered, marked
        self.looks: list[Look] = []
        #: Where generators of the module's own stood.
        self.generators: dict[torch.Generator, torch.Tensor] = {}
        self._count = 0
        self._numbers: dict[Any, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        kind = _KINDS.get(func)
        if kind is None:
            kind = _KINDS[func] = _kind_of(func)
        if kind == "plain":
            return func(*args, **kwargs)
        if kind == "composite":
            with self:
                return torch_private.run_composite(func, args, kwargs)
        if kind == "unknown":
            return _run_if_it_does_not_draw(func, args, kwargs)
        generator = kwargs.get("generator")
        if generator is not None and generator is not torch.default_generator:
            self.generators.setdefault(generator, generator.get_state())
        self._count += 1
        if self.placement is None:
            return self._as_it_is(func, args, kwargs)
        return self._for_all_rows(self.placement, func, args, kwargs)

    def _as_it_is(self, func: Any, args: Any, kwargs: Any) -> Any:
        inputs = tuple(look(leaf) for leaf in leaves((args, kwargs)))
        result = func(*args, **kwargs)
        outputs = tuple(look(leaf) for leaf in leaves(result))
        self.looks.append(Look(place_now(), _name(func), inputs, outputs))
        self._mark(func, args, kwargs, result)
        return result

    def _mark(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        # Of `native_dropout` mask and result belong together.
        if self.marked and _name(func) != "native_dropout":
            for tensor in {id(t): t for t in (*_mutated(func, args, kwargs), *_tensors(result))}.values():
                _mark_positions(tensor, self._count)

    # ------------------------------------------------------------------ drawing for the whole batch
    def _for_all_rows(self, placement: Shard, func: Any, args: Any, kwargs: Any) -> Any:
        draw = self._known(placement, _name(func), (args, kwargs))
        if draw is None:
            with own_stream():
                return func(*args, **kwargs)
        if draw.name == "native_dropout":
            return _dropout(draw, placement, func, *args)
        ignored = next(iter(leaves(args)), None) if _ignores_first(func) else None
        #: Tensors of the global shape, and what they stand for; by the identity of either.
        standing: dict[int, torch.Tensor] = {}
        behind: dict[int, tuple[torch.Tensor, Along]] = {}
        layouts = iter(draw.inputs)

        def widen(leaf: Any) -> Any:
            layout = next(layouts)
            if isinstance(layout, Length):
                return layout.per_row * placement.total
            if not isinstance(layout, Along):
                return leaf
            if id(leaf) not in standing:
                wide = _of_global_shape(leaf, layout, placement, filled=leaf is not ignored)
                standing[id(leaf)], behind[id(wide)] = wide, (leaf, layout)
            return standing[id(leaf)]

        wide_args, wide_kwargs = mapped(widen, args), mapped(widen, kwargs)
        result = func(*wide_args, **wide_kwargs)
        self._mark(func, wide_args, wide_kwargs, result)
        for wide in _mutated(func, wide_args, wide_kwargs):
            if id(wide) in behind:
                local, layout = behind[id(wide)]
                local.copy_(_block(wide, layout, placement))
        outputs = iter(draw.outputs)

        def keep(leaf: Any) -> Any:
            layout = next(outputs)
            if id(leaf) in behind:
                return behind[id(leaf)][0]
            return _block(leaf, layout, placement).clone() if isinstance(layout, Along) else leaf

        return mapped(keep, result)

    def _known(self, placement: Shard, name: str, nest: Any) -> Draw | None:
        place = place_now()
        number = self._numbers.get(place, 0)
        self._numbers[place] = number + 1
        for known in (True, False):
            draw = self.draws.find(place, number if self.ordered else None)
            if draw is not None and draw.name == name and _fits(draw, nest, placement):
                return draw
            if known and self.learn is not None:
                self.learn()
        if not self.draws.strict:
            return None
        raise SamestepError(
            f"--exact-random: a module draws random numbers (`{name}`) in a part of it that did not run when it was "
            "checked, and of which it cannot be said how they follow the rows of the batch. Run without "
            "--exact-random, or call the module in this way at its first call."
        )


# ---------------------------------------------------------------------- kinds of operations
_KINDS: dict[Any, str] = {}


def _kind_of(func: Any) -> str:
    """`draws`, `plain`, `composite` (in inference mode torch hands those on undivided) or `unknown`."""
    if not torch_private.is_operator(func):
        return "plain"
    name = _name(func)
    if name in _SHAPE_OF_FIRST or name in _OTHERS:
        return "draws"
    if torch_private.is_composite(func):
        return "composite"
    return "unknown" if torch.Tag.nondeterministic_seeded in func.tags else "plain"


def _name(func: Any) -> str:
    name: str = func.overloadpacket.__name__
    return name


def _ignores_first(func: Any) -> bool:
    return _name(func) in _SHAPE_OF_FIRST or (_name(func) == "bernoulli" and func._overloadname == "p")


def _run_if_it_does_not_draw(func: Any, args: Any, kwargs: Any) -> Any:
    before = torch_state()
    result = func(*args, **kwargs)
    if same_state(before, torch_state()):
        return result
    raise NotByRow(f"it draws random numbers by `{_name(func)}`, which cannot be cut into rows")


def _mutated(func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            if isinstance(value, torch.Tensor):
                yield value


def _tensors(nest: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in leaves(nest) if isinstance(leaf, torch.Tensor))


# ---------------------------------------------------------------------- shapes
def _fits(draw: Draw, nest: Any, placement: Shard) -> bool:
    found = list(leaves(nest))
    return len(found) == len(draw.inputs) and all(
        _fits_layout(leaf, layout, placement.rows) for leaf, layout in zip(found, draw.inputs, strict=True)
    )


def _fits_layout(leaf: Any, layout: Layout, rows: int) -> bool:
    if isinstance(layout, Length):
        return bool(leaf == Size(layout.per_row * rows))
    if isinstance(layout, Along):
        return bool(leaf.dim() == len(layout.order) and leaf.size(layout.dim) == layout.per_row * rows)
    return True


def _block(wide: torch.Tensor, layout: Along, placement: Shard) -> torch.Tensor:
    """This rank's rows of a tensor of the global shape."""
    per_row = layout.per_row
    return wide.narrow(layout.dim, per_row * placement.offset, per_row * placement.rows)


def _of_global_shape(local: torch.Tensor, layout: Along, placement: Shard, *, filled: bool) -> torch.Tensor:
    """A tensor of the global shape, laid out in memory as one device's would be; with all ranks' rows if `filled`."""
    shape = list(local.shape)
    shape[layout.dim] = layout.per_row * placement.total
    wide = torch.empty_strided(shape, _global_strides(local, layout, placement), dtype=local.dtype, device=local.device)
    if not filled:
        return wide
    meet()
    rows = world.current().all_gather(local, layout.dim, [layout.per_row * n for n in placement.sizes])
    return rows if 0 in wide.stride() else wide.copy_(rows)


def _global_strides(local: torch.Tensor, layout: Along, placement: Shard) -> list[int]:
    """The strides inside a row stay; those of dimensions that lie outside the rows' grow with the number of rows."""
    strides = list(local.stride())
    entries = local.size(layout.dim)
    # A single entry may have any stride: its place in memory is then known from a batch with more rows.
    order = layout.order if entries == 1 else sorted(range(local.dim()), key=lambda d: (strides[d], -d))
    position = list(order).index(layout.dim)
    inner, outer = order[:position], order[position + 1 :]
    if entries == 1:
        strides[layout.dim] = max([1, *(strides[d] * local.size(d) for d in inner)])
    for d in outer:
        grown, rest = divmod(strides[d] * layout.per_row * placement.total, entries)
        strides[d] = grown if rest == 0 else strides[d] * layout.per_row * placement.total
    return strides


def _dropout(draw: Draw, placement: Shard, func: Any, x: torch.Tensor, p: float, train: bool | None) -> Any:
    """`native_dropout`: its mask does not depend on what it is given, so nothing need be gathered."""
    layout = draw.inputs[0]
    if not isinstance(layout, Along):
        return func(x, p, train)
    wide = _of_global_shape(x, layout, placement, filled=False).fill_(1)
    mask = _block(func(wide, p, train)[1], layout, placement).clone()
    if not train and train is not None:
        return x.clone(), mask
    return x * mask * (1.0 / (1.0 - p) if p < 1 else 0.0), mask


def _mark_positions(tensor: torch.Tensor, number: int) -> None:
    """Fill with numbers between 0 and 1 that tell an element's position, whatever the strides."""
    if not tensor.is_floating_point():
        return
    position = torch.arange(tensor.numel(), dtype=torch.float64, device=tensor.device).view(tensor.shape)
    tensor.copy_((position * 0.6180339887 + number * 0.3819).frac() * 0.98 + 0.01)
