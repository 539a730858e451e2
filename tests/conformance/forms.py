"""The other forms of every operator in PyTorch's database, through global tensors, against plain tensors.

Run under Samestep, with the options of operators.py. The database names for each operator its method
(`x.add(y)`), in-place method (`x.add_(y)`), Python operator (`x + y`, `x += y`) and aliases; besides these `out=`, into
a whole tensor and into a sharded one, and the operator called directly as `torch.ops.aten.…`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from judging import Tally, size_patterns, variants
from operators import UNDEFINED, arguments, chosen, name_of, samples_of

import samestep

#: Forms left out, each with the reason.
EXCLUDED_FORMS = {
    ("as_strided", "in place"): "refused: a sharded tensor cannot change its shape in place (other than by views)",
    ("addbmm", "in place"): "the same: torch lets it grow its first argument",
}

Form = Callable[..., Any]


def forms_of(op: Any) -> Iterator[tuple[str, Form, bool]]:
    """(name of the form, how it is called, whether it writes to its first argument)."""
    found: list[tuple[str, Any, bool]] = [
        ("method", op.method_variant, False),
        ("operator", op.operator_variant, False),
        ("in place", op.inplace_variant, True),
        ("in-place operator", op.inplace_operator_variant, True),
    ]
    for alias in op.aliases:
        found += [
            (f"alias {alias.name}", alias.op, False),
            (f"alias method {alias.name}", alias.method_variant, False),
            (f"alias in place {alias.name}", alias.inplace_variant, True),
        ]
    packet = getattr(torch.ops.aten, op.aten_name or op.name, None) if "." not in (op.aten_name or op.name) else None
    if packet is not None:
        found.append(("aten", packet, op.name.endswith("_")))
    seen: set[Any] = {op.op}
    for name, call, writes in found:
        if call is not None and call not in seen and (op.name, name) not in EXCLUDED_FORMS:
            seen.add(call)
            yield name, call, writes


def returning_target(call: Form) -> Form:
    """The call's result, and what is in the argument that it wrote to."""

    def form(target: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(target, *args, **kwargs)
        return result, target

    return form


def into(call: Form, fill: float, pattern: int | None) -> Form:
    """The call with `out=` of the right shape and dtype: a whole tensor, or one sharded by a pattern of sizes."""

    def form(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            like = samestep.whole(call(*args, **kwargs))
        if not isinstance(like, torch.Tensor):
            return None  # several outputs: `out` is a tuple, in forms of their own
        out = torch.full_like(like, fill)
        global_ones = [a for a in args if type(a) is not torch.Tensor and isinstance(a, torch.Tensor)]
        if pattern is not None and global_ones and out.dim() and out.layout is torch.strided:
            patterns = size_patterns(out.size(0), samestep.world_size())
            out = samestep.shard(out, 0, patterns[pattern % len(patterns)])
        with torch.no_grad():
            result = call(*args, **kwargs, out=out)
        return result, out

    return form


def run_forms(op: Any, limit: int, tally: Tally) -> int:
    """Judge the forms of an operator; returns how many there are."""
    samples, grad = samples_of(op, limit)
    forms = list(forms_of(op))
    for number, sample in enumerate(samples):
        ways = variants(sample)
        ways = [ways[i] for i in range(number % 2, len(ways), 2)]  # the operator itself is judged in all of them
        for name, call, writes in forms:
            of = f"{name_of(op)} {name} #{number}"
            form = returning_target(call) if writes else call
            tally.check(of, form, sample, grad, ways=ways, fresh=writes, values=op.name not in UNDEFINED)
        if op.supports_out:
            for where, pattern in (("a whole tensor", None), ("a sharded tensor", 0), ("an empty shard", 2)):
                tally.check(
                    f"{name_of(op)} out= {where} #{number}", into(op, 0.5, pattern), sample, False, ways=ways[:1]
                )
    return len(forms)


def main() -> None:
    options = arguments()
    warnings.simplefilter("ignore")
    tally = Tally()
    forms = 0
    operators = chosen(options)
    for op in operators:
        print(f"at {op.name}", file=sys.stderr, flush=True)
        forms += run_forms(op, options.samples, tally)
    print(tally.summary(operators=len(operators), forms=forms))
    sys.exit(1 if tally.failures else 0)


if __name__ == "__main__":
    main()
