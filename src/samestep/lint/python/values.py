"""What a variable or expression is known to hold: kinds of value, and how two branches' knowledge is joined."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal[
    "unknown",
    "constant",  # data: the value; lists and tuples of constants too
    "device",  # a torch.device; location: which
    "device_count",  # torch.cuda.device_count()
    "cuda_is_there",  # torch.cuda.is_available()
    "data_parallel",
    "ddp",
    "fsdp",
    "module",  # another nn.Module, or what a script moves as if it were one
    "tensor",
    "loader",
    "sampler",
    "optimizer",
    "batch",  # what iterating a loader gives; data: PART for what was unpacked from it
    "output",  # what calling a wrapped module gives, or a part of it
    "accelerator",
    "environ",  # a copy of os.environ
    "parser",  # an argparse.ArgumentParser
    "arguments",  # what parse_args() gives; call: the parse_args call
]
#: Marks one of several values that were unpacked from a batch: a tensor, and no object with a `to` of its own.
PART = "part"
WRAPPERS = ("data_parallel", "ddp", "fsdp")

#: Full names of functions whose result is of a known kind.
MAKERS: dict[str, Kind] = {
    "torch.nn.DataParallel": "data_parallel",
    "torch.nn.parallel.DistributedDataParallel": "ddp",
    "torch.distributed.fsdp.FullyShardedDataParallel": "fsdp",
    "torch.utils.data.DataLoader": "loader",
    "torch.utils.data.distributed.DistributedSampler": "sampler",
    "torch.cuda.device_count": "device_count",
    "torch.cuda.is_available": "cuda_is_there",
    "accelerate.Accelerator": "accelerator",
    "argparse.ArgumentParser": "parser",
    "os.environ.copy": "environ",
}
_TENSOR_FUNCTIONS = (
    *("tensor", "as_tensor", "from_numpy", "zeros", "ones", "empty", "full", "rand", "randn", "randint", "randperm"),
    *("arange", "linspace", "eye", "stack", "cat", "zeros_like", "ones_like", "rand_like", "randn_like", "empty_like"),
    *("full_like", "cdist", "matmul", "where"),
)
TENSOR_MAKERS = {f"torch.{name}" for name in _TENSOR_FUNCTIONS}
#: Methods of a module that return the module itself.
RETURNS_SELF = {
    *("train", "eval", "half", "float", "double", "bfloat16", "requires_grad_", "share_memory", "apply", "type"),
}
#: Methods of a tensor that return a tensor.
TENSOR_METHODS = {"half", "float", "double", "long", "int", "bool", "bfloat16", "detach", "clone", "contiguous", "type"}


@dataclass(frozen=True)
class Value:
    """One value.

    `certain` is False where only some branches give it; `location` is the device it was moved to. `assumed`: a wrapper
    that is there on a machine with several GPUs, and not on others (`if torch.cuda.device_count() > 1: …`).
    """

    kind: Kind = "unknown"
    call: ast.Call | None = None
    data: object = None
    certain: bool = True
    location: str = ""
    assumed: bool = False

    def is_wrapper(self) -> bool:
        """Whether it certainly is a module wrapped in DataParallel, DistributedDataParallel or FSDP."""
        return self.kind in WRAPPERS and self.certain

    @property
    def text(self) -> str | None:
        """The string, if it is a constant string."""
        return self.data if self.kind == "constant" and isinstance(self.data, str) else None

    @property
    def whole_number(self) -> int | None:
        """The int, if it is a constant int."""
        if self.kind == "constant" and isinstance(self.data, int) and not isinstance(self.data, bool):
            return self.data
        return None

    @property
    def numbers(self) -> list[int] | None:
        """The ints, if it is a constant list or tuple of ints."""
        if self.kind != "constant" or not isinstance(self.data, list | tuple):
            return None
        numbers = [each for each in self.data if isinstance(each, int) and not isinstance(each, bool)]
        return numbers if len(numbers) == len(self.data) else None


UNKNOWN = Value()
State: TypeAlias = dict[str, Value]


def same(one: Value, other: Value) -> bool:
    """Whether two values are alike; True and 1 are not."""
    return one == other and type(one.data) is type(other.data)


def join_values(one: Value, other: Value) -> Value:
    """What is known where one of two branches was taken."""
    if same(one, other):
        return one
    for value in (one, other):
        if value.kind in WRAPPERS:
            return replace(value, certain=False, location="")
    if one.kind == other.kind and one.kind != "constant":
        call = one.call if one.call is other.call else None
        location = one.location if one.location == other.location else ""
        return Value(one.kind, call, certain=one.certain and other.certain, location=location)
    return UNKNOWN


def join(states: list[State | None]) -> State | None:
    """What is known where several paths meet. None is a path that ends before (return, raise)."""
    alive = [state for state in states if state is not None]
    if not alive:
        return None
    result = dict(alive[0])
    for state in alive[1:]:
        for key in result.keys() | state.keys():
            joined = join_values(result.get(key, UNKNOWN), state.get(key, UNKNOWN))
            if joined == UNKNOWN:
                result.pop(key, None)
            else:
                result[key] = joined
    return result


def assume(value: Value) -> Value:
    """The value as one that is there only on a machine with several GPUs."""
    return replace(value, assumed=True) if value.kind in WRAPPERS else value


def device_of(value: Value) -> str:
    """`cuda`, `cuda:1`, `cpu` … for what may be given as a device, else ''."""
    if value.kind == "device":
        return value.location
    if value.text is not None:
        return value.text
    number = value.whole_number
    return f"cuda:{number}" if number is not None else ""
