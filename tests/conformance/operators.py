"""PyTorch's own operator database through global tensors, against plain tensors.

Run under Samestep: `samestep run --devices cpu:2 operators.py [--samples K] [--part I/N] [--only a,b]`.
Every operator and sample with some tensor argument that has rows: that argument sharded along its first dimension and
along its last, evenly, unevenly and with an empty shard; one argument or all of equal length. Value, dtype, shape and
gradients must be those of the plain call; a sample that raises must raise the same type. Prints one JSON line per
failure and a summary, and exits with 1 if there was any failure.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from typing import Any

import torch
from judging import Tally
from torch.testing._internal.common_methods_invocations import op_db

#: Operators left out, each with the reason.
EXCLUDED = {
    "empty": "takes no tensor",
    "empty_permuted": "takes no tensor",
    "empty_strided": "takes no tensor",
    "resize_": "refused: a sharded tensor cannot change its shape in place",
}

#: Operators whose results have undefined contents: shape and dtype are compared.
UNDEFINED = {"empty_like", "new_empty", "new_empty_strided"}


def samples_of(op: Any, limit: int) -> tuple[list[Any], bool]:
    """At most `limit` samples of an operator, spread over what the database has, and whether they take gradients."""
    dtype = torch.float32 if torch.float32 in op.dtypes else next(iter(sorted(op.dtypes, key=str)))
    grad = op.supports_autograd and dtype.is_floating_point
    torch.manual_seed(0)
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=grad))
    step = max(1, len(samples) // limit)
    return [(s.input, s.args, s.kwargs) for s in samples[::step][:limit]], grad


def name_of(op: Any) -> str:
    """The operator's name with its variant."""
    return f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''}"


def run_operator(op: Any, limit: int, tally: Tally) -> None:
    """Judge an operator."""
    samples, grad = samples_of(op, limit)
    for number, sample in enumerate(samples):
        tally.check(f"{name_of(op)} #{number}", op, sample, grad, values=op.name not in UNDEFINED)


def chosen(options: argparse.Namespace) -> list[Any]:
    """The operators of the part that was asked for."""
    index, parts = map(int, options.part.split("/"))
    only = set(filter(None, options.only.split(",")))
    return [
        op
        for position, op in enumerate(op_db)
        # One without dtypes is for other devices only.
        if op.dtypes and (not only or op.name in only) and position % parts == index and op.name not in EXCLUDED
    ]


def arguments() -> argparse.Namespace:
    """The command line that the judges share."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--only", default="")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    warnings.simplefilter("ignore")
    tally = Tally()
    operators = chosen(options)
    for op in operators:
        print(f"at {op.name}", file=sys.stderr, flush=True)
        run_operator(op, options.samples, tally)
    print(tally.summary(operators=len(operators)))
    sys.exit(1 if tally.failures else 0)


if __name__ == "__main__":
    main()
