"""What a subclass can override and the operator database does not name, through global tensors, against plain tensors.

Run under Samestep: `samestep run --devices cpu:2 surface.py [--only NAME,…]`. The calls are in surface_samples.py.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from typing import Any

import torch
from judging import Tally
from surface_samples import SAMPLES
from torch.utils._pytree import tree_flatten


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    only = set(filter(None, parser.parse_args().only.split(",")))
    warnings.simplefilter("ignore")
    tally = Tally()
    done: set[int] = set()
    for name, calls in SAMPLES.items():
        if only and name not in only:
            continue
        print(f"at {name}", file=sys.stderr, flush=True)
        for number, (function, args, kwargs) in enumerate(calls):
            if id(calls[number]) in done:
                continue
            done.add(id(calls[number]))
            tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
            grad = any(t.requires_grad for t in tensors)
            sample: Any = (args[0], args[1:], kwargs)
            tally.check(f"{name} #{number}", function, sample, grad, fresh=True)
    print(tally.summary(names=len(SAMPLES)))
    sys.exit(1 if tally.failures else 0)


if __name__ == "__main__":
    main()
