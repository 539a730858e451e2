"""`GlobalTensor`: a tensor whose global value the script sees, held as a plain local tensor and a placement."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import torch

from samestep import torch_private
from samestep.globalview import collectives
from samestep.globalview.placement import PARTIAL, Partial, Placement, Shard, Whole
from samestep.ledger import LEDGER

Rule = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

#: Function → rule. Filled by `samestep.globalview.rules`; a function without a rule falls back.
RULES: dict[Any, Rule] = {}

#: Gathered values up to this size are kept, so that looking twice costs one collective.
_REMEMBER_BYTES = 1 << 20


class _Where(threading.local):
    """Whether this thread is inside a region, where tensors are plain and local."""

    region = 0


WHERE = _Where()


class _Elsewhere:
    """Parts of the dispatch that need this module themselves; `fallback` and `plans` fill them in."""

    fallback: Rule
    inside_region: Rule
    planned: Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]


ELSEWHERE = _Elsewhere()


class GlobalTensor(torch.Tensor):
    """A tensor of global shape; each rank holds a part of it.

    The script makes none itself: batches from a `DataLoader` and the outputs of modules are of this class, and
    what is computed from them. It behaves as the whole tensor does on one device: `shape`, `item()`, printing,
    comparing, indexing all speak of the global value. An operation that has a rule works on the local pieces; any
    other makes the operands whole first, so the result is right by construction.

    `samestep.local(t)` gives this rank's block, `samestep.whole(t)` the plain whole tensor.
    """

    _local: torch.Tensor
    _placement: Placement
    #: The global shape; reading the wrapper's own would go through dispatch.
    _shape: torch.Size
    #: The exact quotient behind a mean: (numerator of this rank, denominator), see `collectives.add_up`.
    #: Good only while the local term's version is the third entry.
    _quotient: tuple[torch.Tensor, Any, int] | None = None
    _seen: tuple[torch.Tensor, int, int] | None = None
    #: Ignored targets counted ahead, see `samestep.globalview.census`.
    _census: Any = None
    #: The name of the `grad_fn` that one device would print.
    _origin: str | None = None
    #: Whether `.data` was taken: an alias whose writes no version counter shows, so nothing may be remembered.
    _aliased: bool = False
    #: The single value behind a vector with one entry per device, see `samestep.parallel.device_scalars`, the local
    #: vector and its version, for which alone this holds.
    _gathered: tuple[torch.Tensor, torch.Tensor, int] | None = None
    #: What this is a view of, where a rank's piece could not be one: (tensor, remake the view, its version).
    _source: tuple[GlobalTensor, Callable[[torch.Tensor], torch.Tensor], int] | None = None

    @staticmethod
    def __new__(
        cls, local: torch.Tensor, placement: Placement, shape: Any, quotient: tuple[torch.Tensor, Any] | None = None
    ) -> GlobalTensor:
        facade = sharded(local, placement, shape if type(shape) is torch.Size else torch.Size(shape))
        if quotient is not None and not local.is_inference():
            facade._quotient = (*quotient, local._version)
        return facade

    # ------------------------------------------------------------------ dispatch
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if WHERE.region:
            return ELSEWHERE.inside_region(func, args, kwargs)
        if args and type(args[0]) is GlobalTensor:
            result = ELSEWHERE.planned(func, args[0], args[1:], kwargs)
            if result is not None:
                return result
        if torch_private.inside_transform():  # of torch.func: operands are wrapped, nothing may be exchanged
            return ELSEWHERE.fallback(func, args, kwargs)
        rule = RULES.get(func)
        # What a function writes into `out=` must be all of it, on every rank: no rule does that.
        if rule is not None and (not kwargs or kwargs.get("out") is None):
            result = rule(func, args, kwargs)
            if result is not NotImplemented:
                return result
        return ELSEWHERE.fallback(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # Reached only where C++ code takes a tensor without asking `__torch_function__` (torch.tensor(x), custom
        # operators). Autograd is above this level, so a gradient would be lost here without a word.
        if (
            torch.is_grad_enabled()
            and func not in _NO_GRADIENT
            and any(t._local.requires_grad for t in _globals_in((args, kwargs or {})))
        ):
            raise NotImplementedError(
                f"{func} was called on a sharded tensor that requires a gradient in a way that Samestep cannot "
                "follow. Give it `samestep.whole(tensor)`, or `tensor.detach()` if no gradient is needed."
            )
        with torch.no_grad():
            plain_args, plain_kwargs = made_whole((args, kwargs or {}), str(func))
        return func(*plain_args, **plain_kwargs)

    # ------------------------------------------------------------------ what it is made of
    def whole(self, operation: str = "whole") -> torch.Tensor:
        """The plain whole tensor; gradients flow back. Collective, unless the value was looked at before."""
        local, placement = self._local, self._placement
        if type(placement) is Whole:
            return local if self._source is None else self._through_source(operation)
        if torch_private.inside_transform():
            with torch_private.outside_transforms():
                return self.whole(operation)
        tracked = local.requires_grad and torch.is_grad_enabled()
        seen = self._seen
        if seen is not None:
            value, local_version, value_version = seen
            unchanged = local._version == local_version and value._version == value_version
            if unchanged and (not tracked or value.requires_grad):
                return value if tracked else value.detach()
        value = self._assemble(operation)
        if self._aliased or local.is_inference() or value.is_inference():  # a write would go unnoticed
            return value
        if type(placement) is Partial or value.numel() * value.element_size() <= _REMEMBER_BYTES:
            self._seen = (value, local._version, value._version)
        return value

    def _through_source(self, operation: str) -> torch.Tensor:
        """A view across ranks follows what is written to the tensor it is a view of."""
        assert self._source is not None
        base, remake, version = self._source
        if base._local._version != version:
            self._local = remake(base.whole(operation))
            self._source = (base, remake, base._local._version)
        return self._local

    def _assemble(self, operation: str) -> torch.Tensor:
        placement = self._placement
        if isinstance(placement, Shard):
            value = collectives.gather(self._local, placement)
        else:
            value = collectives.add_up(self._local, *self.quotient)
        LEDGER.gather(operation, type(placement).__name__, value.numel() * value.element_size())
        return value

    @property
    def quotient(self) -> tuple[Any, Any]:
        """Numerator and denominator if they are still those of the local term, else twice None."""
        known = self._quotient
        return (known[0], known[1]) if known is not None and known[2] == self._local._version else (None, None)

    def kept_quotient(self) -> tuple[torch.Tensor, Any] | None:
        """The same for another global tensor of the same value."""
        numerator, denominator = self.quotient
        return None if numerator is None else (numerator, denominator)

    @property
    def single(self) -> torch.Tensor | None:
        """One device's scalar behind a vector with one entry per device, if this is one that nobody has changed."""
        known = self._gathered
        unchanged = known is not None and known[1] is self._local and known[2] == self._local._version
        return known[0] if known is not None and unchanged else None

    def set_piece(self, local: torch.Tensor, placement: Placement | None = None) -> None:
        """Let this object stand for another value (an in-place operation whose alias is the object itself)."""
        self._local = local
        if placement is not None:
            self._placement = placement
        self._quotient = None
        self._seen = None

    # ------------------------------------------------------------------ cheap facts, without dispatch
    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        return self._shape

    def dim(self) -> int:
        return len(self._shape)

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return len(self._shape)

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self._local.dtype

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._local.device

    def size(self, dim: int | None = None) -> Any:
        return self._shape if dim is None else self._shape[dim]

    @property
    def requires_grad(self) -> bool:
        return self._local.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self._local.requires_grad = value

    def requires_grad_(self, requires_grad: bool = True) -> GlobalTensor:
        self._local.requires_grad_(requires_grad)
        self._seen = None
        return self

    @property
    def is_leaf(self) -> bool:  # type: ignore[override]
        return self._local.is_leaf

    @property
    def grad_fn(self) -> Any:  # type: ignore[override]
        return self._local.grad_fn

    @property
    def grad(self) -> torch.Tensor | None:
        grad = self._local.grad
        if grad is None or type(self._placement) is not Shard:
            return grad
        return GlobalTensor(grad, self._placement, self._shape)

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        self._local.grad = None if value is None else piece_of(value, self._placement)

    @property
    def data(self) -> torch.Tensor:
        alias = GlobalTensor(self._local.data, self._placement, self._shape, self.kept_quotient())
        self._aliased = alias._aliased = True
        self._seen = self._census = self._quotient = self._gathered = None
        return alias

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        self._local.data = piece_of(value, self._placement)
        self._seen = None
        self._quotient = None

    @property
    def _version(self) -> int:  # type: ignore[override]
        return self._local._version

    def retain_grad(self) -> None:
        self._local.retain_grad()

    def detach(self) -> GlobalTensor:
        return GlobalTensor(self._local.detach(), self._placement, self._shape, self.kept_quotient())

    def register_hook(self, hook: Any) -> Any:
        """As on one device: the hook sees the global gradient and may return another."""
        placement, shape = self._placement, self._shape

        def on_piece(grad: torch.Tensor) -> torch.Tensor | None:
            result = hook(GlobalTensor(grad, placement, shape) if type(placement) is Shard else grad)
            return None if result is None else piece_of(result, placement)

        return self._local.register_hook(on_piece)

    def register_post_accumulate_grad_hook(self, hook: Any) -> Any:
        """As on one device: the hook gets this tensor, whose `grad` is the global gradient."""
        return self._local.register_post_accumulate_grad_hook(lambda _: hook(self))

    def backward(
        self, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False, inputs: Any = None
    ) -> None:
        torch.autograd.backward(self, gradient, retain_graph, create_graph, inputs=inputs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """As the whole tensor prints on one device."""
        text = repr(self.whole("print").detach())
        if not self._local.requires_grad:
            return text
        node = self._local.grad_fn
        suffix = "requires_grad=True" if node is None else f"grad_fn=<{self._origin or node.name()}>"
        return f"{text[:-1]}, {suffix})"

    def __format__(self, spec: str) -> str:
        scalar = self.dim() == 0 or self.single is not None
        return format(self.item(), spec) if scalar else object.__format__(self, spec)

    __hash__ = torch.Tensor.__hash__


_make_wrapper = torch.Tensor._make_wrapper_subclass


def sharded(local: torch.Tensor, placement: Placement, shape: torch.Size) -> GlobalTensor:
    """A `GlobalTensor` of these parts, at the least cost."""
    facade: GlobalTensor
    if local.is_cpu:  # by position: reading keywords takes a quarter of the time of the call
        facade = _make_wrapper(GlobalTensor, shape, None, None, None, local.dtype)
    else:
        facade = _make_wrapper(GlobalTensor, shape, dtype=local.dtype, device=local.device)
    facade._local = local
    facade._placement = placement
    facade._shape = shape
    return facade


_aten = torch.ops.aten
_NO_GRADIENT = {_aten.detach.default, _aten._local_scalar_dense.default}


def _globals_in(nest: Any) -> list[GlobalTensor]:
    found: list[GlobalTensor] = []
    _collect(nest, found)
    return found


def _collect(nest: Any, found: list[GlobalTensor]) -> None:
    if type(nest) is GlobalTensor:
        found.append(nest)
    elif isinstance(nest, (tuple, list)):
        for value in nest:
            _collect(value, found)
    elif isinstance(nest, dict):
        for value in nest.values():
            _collect(value, found)


def made_whole(nest: Any, operation: str) -> Any:
    """Arguments with every `GlobalTensor` made whole (tuples, lists and dicts are looked through)."""
    kind = type(nest)
    if kind is GlobalTensor:
        return nest.whole(operation)
    if kind is tuple or kind is list:
        return kind(made_whole(value, operation) for value in nest)
    if kind is dict:
        return {key: made_whole(value, operation) for key, value in nest.items()}
    if isinstance(nest, tuple):
        return tuple(made_whole(value, operation) for value in nest)
    return nest


def piece_of(value: Any, placement: Placement) -> torch.Tensor:
    """This rank's part of `value` (plain whole, or global) under `placement`, as a *gradient* of a tensor there.

    For Shard it is the block; the gradient of a Partial or Whole is whole.
    """
    if type(value) is GlobalTensor:
        if value._placement == placement and type(placement) is Shard:
            return value._local
        value = value.whole("gradient")
    if isinstance(placement, Shard):
        return collectives.cut(value, placement)
    plain: torch.Tensor = value
    return plain


# ---------------------------------------------------------------------- making
def shard_whole(tensor: torch.Tensor, dim: int, sizes: tuple[int, ...], *, view: bool = False) -> GlobalTensor:
    """A whole tensor as a sharded one; gradients flow back to it."""
    return GlobalTensor(collectives.cut(tensor, Shard(dim, sizes), view=view), Shard(dim, sizes), tensor.shape)


def wrap(local: torch.Tensor, placement: Shard) -> GlobalTensor:
    """This rank's block as a global tensor: `local.shape` with the sharded dimension's global size."""
    shape = list(local.shape)
    shape[placement.dim] = placement.total
    return GlobalTensor(local, placement, shape)


def partial(
    local: torch.Tensor, quotient: tuple[torch.Tensor, Any] | None = None, origin: str | None = None
) -> GlobalTensor:
    """This rank's term of a sum over the ranks as a global tensor."""
    result = GlobalTensor(local, PARTIAL, local.shape, quotient)
    result._origin = origin
    return result


def node_name(tensor: torch.Tensor) -> str | None:
    """The name of a tensor's `grad_fn`, as it prints."""
    return tensor.grad_fn.name() if tensor.grad_fn is not None else None


def numel_of(shape: Any) -> int:
    """The number of elements of a shape."""
    return math.prod(shape)
