"""What `nn.DataParallel` makes of a module that returns a scalar: a vector with one entry per device.

Scripts written for it average the vector (`loss.mean()`), add it up (`correct.sum()`), or add it up and divide by the
number of devices. One device has a single value s, so the entries are chosen by what the scalar is:

* a mean over the rows, a mean over their tokens, a loss that couples the rows, or anything else: every entry is s. Then
  `.mean()`, `.max()`, `[0]` and `.sum() / number of devices` are all s, for uneven shards too. (Entries of single
  shards would need weights for uneven ones, and could not be exact where a mean counts something besides rows.)
* a sum over the rows (a summed loss, a number of hits): the entries add up to s. Then `.sum()` is s. `.mean()` is s
  divided by the number of devices, as with `nn.DataParallel`, and this is said once.

Which it is, is found by the module's values on a few rows and on the two halves of them. A script that uses the result
as the scalar that one device returns (`loss.backward()`, `loss.item()`) gets s as well.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import MutableMapping
from typing import Any

import torch
from torch import nn

from samestep import torch_private, world
from samestep.globalview.placement import WHOLE, Partial, Shard
from samestep.globalview.tensor import RULES, GlobalTensor, partial
from samestep.nest import map_tensors, tensors
from samestep.notice import notice_once
from samestep.parallel.restoring import restored
from samestep.parallel.stillness import deterministic_random

#: Rows on which a module is tried.
TRIED_ROWS = 4

VALUE, SUM, CONSTANT = "value", "sum", "constant"

#: Module → what its outputs are, by mode and form of the output.
_KINDS: MutableMapping[nn.Module, dict[Any, list[str]]] = torch_private.by_identity()
#: How often a module's scalars were all zero when tried, by the same key.
_ZERO: MutableMapping[nn.Module, dict[Any, int]] = torch_private.by_identity()


def per_device(output: Any, module: nn.Module, args: Any, kwargs: Any, dim: int, devices: int) -> Any:
    """A module's `output` with each scalar as a vector of `devices` entries; everything else as it is.

    A tensor of size 1 in dimension `dim` that does not hold the rows (`loss.unsqueeze(0)`) counts as scalar, too.

    Args:
        output: any nest.
        module, args, kwargs: the call that gave it.
        dim: the dimension of the rows.
        devices: how many entries; below 2 nothing is changed, as with one device.
    """
    rows = _rows(args, kwargs, dim)
    found = list(tensors(output)) if devices > 1 else []
    if not any(_is_scalar(t, dim, rows) for t in found):
        return output
    kinds = iter(kinds_of(output, module, args, kwargs, dim))
    # Along with `found`: the same tensor may stand in two places of the nest.
    return map_tensors(
        lambda t: (
            vector(t, kind, dim, devices) if (kind := next(kinds)) != CONSTANT and _is_scalar(t, dim, rows) else t
        ),
        output,
    )


def _rows(args: Any, kwargs: Any, dim: int) -> int | None:
    """The number of rows of a call, along `dim` of its first tensor that has one."""
    for tensor in tensors((args, kwargs)):
        if type(tensor) is GlobalTensor and isinstance(tensor._placement, Shard):
            return tensor._placement.total
    return next((t.size(dim) for t in tensors((args, kwargs)) if t.dim() > dim), None)


def _is_scalar(tensor: torch.Tensor, dim: int, rows: int | None) -> bool:
    if tensor.dim() == 0:
        return True
    if tensor.dim() <= dim or tensor.size(dim) != 1 or rows == 1:
        return False
    return not (type(tensor) is GlobalTensor and isinstance(tensor._placement, Shard))


# ---------------------------------------------------------------------- the vector
def vector(scalar: torch.Tensor, kind: str, dim: int, devices: int) -> torch.Tensor:
    entries = pieces(scalar, kind, devices)
    one = scalar.whole() if type(scalar) is GlobalTensor and not isinstance(scalar._placement, Partial) else scalar
    join = torch.stack if scalar.dim() == 0 else lambda parts: torch.cat(parts, dim)
    local = join([p._local if type(p) is GlobalTensor else p for p in entries])
    if type(one) is GlobalTensor:
        quotient = None
        if kind == VALUE and (known := one.kept_quotient()) is not None:
            quotient = (join([known[0]] * devices), known[1])
        result = partial(local, quotient)
    else:
        result = GlobalTensor(local, WHOLE, local.shape)
    if not result._local.is_inference():
        result._gathered = (scalar, result._local, result._local._version)
    return result


def pieces(scalar: torch.Tensor, kind: str, devices: int) -> list[torch.Tensor]:
    """One device's scalar as what each of `devices` devices would have: all of it, or its share of a sum."""
    if kind == VALUE:
        return [_again(scalar) for _ in range(devices)]
    if type(scalar) is GlobalTensor and isinstance(scalar._placement, Partial):
        # The rank's own term goes to one entry, so that integers stay integers.
        mine = world.current().rank % devices
        return [partial(scalar._local if i == mine else torch.zeros_like(scalar._local)) for i in range(devices)]
    whole = scalar.whole() if type(scalar) is GlobalTensor else scalar
    if whole.is_floating_point() or whole.is_complex():
        return [whole / devices for _ in range(devices)]
    share = torch.div(whole, devices, rounding_mode="floor")
    return [share + (whole - share * devices) * (i == 0) for i in range(devices)]


def _again(scalar: torch.Tensor) -> torch.Tensor:
    """The same value as another object."""
    if type(scalar) is GlobalTensor and isinstance(scalar._placement, Partial):
        return partial(scalar._local, scalar.kept_quotient(), scalar._origin)
    whole = scalar.whole() if type(scalar) is GlobalTensor else scalar
    return whole.view_as(whole)


# ---------------------------------------------------------------------- what the scalars are
def kinds_of(output: Any, module: nn.Module, args: Any, kwargs: Any, dim: int) -> list[str]:
    """`VALUE`, `SUM` or `CONSTANT` for each tensor of `output`; the same on every rank."""
    found = list(tensors(output))
    key = (module.training, dim, tuple((t.dim(), t.dtype) for t in found))
    known = _KINDS.setdefault(module, {}).get(key)
    if known is not None:
        return known
    zero = _ZERO.setdefault(module, {})
    zero[key] = zero.get(key, 0) + 1
    times = zero[key]
    defaults = [VALUE if t.is_floating_point() or t.is_complex() else SUM for t in found]
    if times & (times - 1):  # always zero so far: looked at again after 1, 2, 4, 8, … calls
        return defaults
    tried = _tried(module, args, kwargs, dim, TRIED_ROWS) or [None] * len(found)
    if any(kind is None for kind in tried):
        more = _tried(module, args, kwargs, dim, None) or [None] * len(found)
        tried = [a or b for a, b in zip(tried, more, strict=True)] if len(more) == len(tried) else tried
    if len(tried) != len(found):
        tried = [None] * len(found)
    kinds = [kind or default for kind, default in zip(tried, defaults, strict=True)]
    if all(kind is not None for kind in tried):
        _KINDS[module][key] = kinds
        if any(k == SUM and (t.is_floating_point() or t.is_complex()) for k, t in zip(kinds, found, strict=True)):
            notice_once(
                f"{type(module).__name__} returns a sum over its rows to nn.DataParallel, which gives one entry per "
                "device: their `.sum()` is one device's value; `.mean()` is that divided by the number of devices."
            )
    return kinds


def _tried(module: nn.Module, args: Any, kwargs: Any, dim: int, most: int | None) -> list[str | None] | None:
    """What each output tensor is, judged on some rows; None for those that are zero, None if it cannot be tried."""
    rows = _rows(args, kwargs, dim)
    if rows is None or rows < 2:
        return None
    count = rows if most is None else min(most, rows)
    # Every rank has the same rows and comes to the same result.
    everything = map_tensors(lambda t: (t.whole() if type(t) is GlobalTensor else t).detach(), (args, kwargs))

    def run(start: int, stop: int) -> list[torch.Tensor] | None:
        def cut(tensor: torch.Tensor) -> torch.Tensor:
            at = dim if tensor.dim() > dim and tensor.size(dim) == rows else 0
            if tensor.dim() == 0 or tensor.size(at) != rows or isinstance(tensor, nn.Parameter):
                return tensor.clone()
            return tensor.narrow(at, start, stop - start).clone()

        return _quiet(module, map_tensors(cut, everything))

    half = count // 2
    parts = (run(0, count), run(0, half), run(half, count))
    if any(p is None for p in parts):
        return None
    whole, first, second = (p or [] for p in parts)
    if not len(whole) == len(first) == len(second):
        return None
    return [_kind(w, a, b) for w, a, b in zip(whole, first, second, strict=True)]


def _quiet(module: nn.Module, arguments: Any) -> list[torch.Tensor] | None:
    args, kwargs = arguments
    try:
        quiet = contextlib.redirect_stdout(io.StringIO())
        with torch.no_grad(), restored(module), deterministic_random(module), quiet:
            return [t.detach().clone() for t in tensors(module(*args, **kwargs))]
    except Exception:
        return None


def _kind(whole: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> str | None:
    if not whole.shape == first.shape == second.shape:
        return VALUE  # rows: not a scalar
    if whole.numel() == 0:
        return VALUE
    wide = torch.complex128 if whole.is_complex() else torch.float64
    w, a, b = (t.to(wide) for t in (whole, first, second))
    size = float(torch.stack([w.abs().max(), a.abs().max(), b.abs().max()]).max())
    if size == 0.0:
        return None
    coarse = {torch.float16: 1e-2, torch.bfloat16: 5e-2}.get(whole.dtype, 1e-4)

    def close(left: torch.Tensor, right: torch.Tensor) -> bool:
        return bool(((left - right).abs() <= coarse * size).all())

    if torch.equal(w, a) and torch.equal(w, b):
        return VALUE if whole.dim() == 0 else CONSTANT
    return SUM if close(w, a + b) else VALUE


# ---------------------------------------------------------------------- used as one device's scalar
def _as_single(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    x = args[0]
    single = x.single if type(x) is GlobalTensor else None
    if single is None:
        previous = _BEFORE.get(func)
        return NotImplemented if previous is None else previous(func, args, kwargs)
    return func(single, *args[1:], **kwargs)


_BEFORE: dict[Any, Any] = {}


def install() -> None:
    """Let a gathered scalar be read as the single one that one device returns."""
    for name in ("item", "__float__", "__int__", "__bool__", "__complex__", "__index__", "__format__"):
        function = getattr(torch.Tensor, name)
        if function in RULES:
            _BEFORE[function] = RULES[function]
        RULES[function] = _as_single
