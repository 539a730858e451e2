"""What Python itself does with a tensor: numbers, containers, text, NumPy, copies and files see the global value."""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

import samestep
from inside.claims import case, raises, same, shards, true

ROWS = 7


def _data() -> torch.Tensor:
    torch.manual_seed(31)
    return torch.randn(ROWS, 3)


def check_numbers() -> None:
    plain = _data()
    for sizes, x in shards(plain):
        with case(sizes):
            same(float(x[2, 1]), float(plain[2, 1]), "float of an element")
            same(float(x.mean()), float(plain.mean()), "float of a mean")
            same(int(x.sum() * 10), int(plain.sum() * 10), "int")
            same(bool((x > 5).any()), bool((plain > 5).any()), "bool")
            same(bool((x > 0).sum() > 3), bool((plain > 0).sum() > 3), "bool of a comparison")
            same("yes" if x.sum() > 0 else "no", "yes" if plain.sum() > 0 else "no", "if")
            same(not x.sum() > 0, not plain.sum() > 0, "not")
            same(complex(x[0, 0]), complex(plain[0, 0]), "complex")
            same(round(float(x[0, 0]), 3), round(float(plain[0, 0]), 3), "round")
            same(math.sqrt(x.abs().sum()), math.sqrt(plain.abs().sum()), "math")
            same(math.isnan(x.sum()), False, "isnan")
            same(list(range((x > 0).sum())), list(range((plain > 0).sum())), "range")
            same([0] * int((x > 0).sum()), [0] * int((plain > 0).sum()), "repetition")
            same(x[0, 0].item() + 1, plain[0, 0].item() + 1, "item")
            same(divmod(int(x.abs().sum()), 2), divmod(int(plain.abs().sum()), 2), "divmod")
            same(abs(x[0, 0]), abs(plain[0, 0]), "abs")
            same(pow(x[0, 0], 2), pow(plain[0, 0], 2), "pow")
            raises(RuntimeError, "bool of many", bool, x)
            raises((RuntimeError, ValueError), "item of many", x.item)
            raises((RuntimeError, ValueError, TypeError), "float of many", float, x)
            raises(TypeError, "many as index of a list", [0].__getitem__, x)


def check_containers() -> None:
    plain = _data()
    for sizes, x in shards(plain):
        with case(sizes):
            same(len(x), ROWS, "len")
            same(list(x), list(plain), "iteration")
            same([float(v) for row in x for v in row], [float(v) for row in plain for v in row], "iteration twice")
            same(list(zip(x, range(ROWS), strict=True)), list(zip(plain, range(ROWS), strict=True)), "zip")
            same(list(enumerate(x[:, 0])), list(enumerate(plain[:, 0])), "enumerate")
            same([i for i, v in enumerate(x[:, 0]) if v > 0], [i for i, v in enumerate(plain[:, 0]) if v > 0], "filter")
            same(sum(x[:, 0]), sum(plain[:, 0]), "sum")
            same(max(x[:, 0]), max(plain[:, 0]), "max")
            same(sorted(x[:, 0].tolist()), sorted(plain[:, 0].tolist()), "sorted")
            same(list(map(float, x[0])), list(map(float, plain[0])), "map")
            same(list(reversed(x)), list(reversed(plain)), "reversed")
            same(float(plain[0, 0]) in x, True, "in")
            same(99.0 in x, False, "not in")
            same(x.tolist(), plain.tolist(), "tolist")
            same(isinstance(x, Iterable), True, "Iterable")
            first, *rest = x
            same([first, rest], [plain[0], list(plain[1:])], "unpacking")
            a, b, c = x[0]
            same([a, b, c], [*plain[0]], "unpacking of a row")
            same(next(iter(x)), plain[0], "next")
            values, places = x.max(1)
            same([values, places], [*plain.max(1)], "unpacking of max")
            same(x.max(1).indices, plain.max(1).indices, "named fields")
            names = {x: "batch"}
            same(names[x], "batch", "dict key")
            true(hash(x) == hash(x) and x in {x}, "hash")
            same(all((x > -9).all(1)), True, "all()")
            same(any(v > 0 for v in x[:, 0]), bool((plain[:, 0] > 0).any()), "any()")
            rows, columns = x.shape
            same([rows, columns, x.size()], [ROWS, 3, plain.size()], "shape")


def check_text() -> None:
    plain = _data()
    for sizes, x in shards(plain):
        with case(sizes):
            same(str(x), str(plain), "str")
            same(repr(x), repr(plain), "repr")
            same(f"{x.sum():.3f} {x.mean():8.2e}", f"{plain.sum():.3f} {plain.mean():8.2e}", "format")
            same(f"{x}", f"{plain}", "format of many")
            same("%.3f" % x.sum(), "%.3f" % plain.sum(), "percent")  # noqa: UP031
            same(f"{x.sum():.3f}", f"{plain.sum():.3f}", "str.format")
            same(json.dumps([len(x), x.tolist()]), json.dumps([ROWS, plain.tolist()]), "json")
            same(str(x.shape), str(plain.shape), "shape")
            same(str((x > 0).sum()), str((plain > 0).sum()), "Partial")
            tracked, plain_tracked = x.clone().requires_grad_(), plain.clone().requires_grad_()
            same(str(tracked.detach()), str(plain_tracked.detach()), "detached")
            same("requires_grad=True" in str(tracked), True, "leaf")
            same("grad_fn" in str(tracked * 2), True, "grad_fn")
            same(str(tracked * 2), str(plain_tracked * 2), "with grad_fn")


def check_numpy() -> None:
    plain = _data()

    def alike(got: Any, expected: Any, text: str) -> None:
        true(type(got) is type(expected) and np.asarray(got).dtype == np.asarray(expected).dtype, f"{text}: type")
        true(np.array_equal(np.asarray(got), np.asarray(expected)), f"{text}: values")

    for sizes, x in shards(plain):
        with case(sizes):
            alike(x.numpy(), plain.numpy(), "numpy()")
            alike(x.cpu().detach().numpy(), plain.numpy(), "cpu detach numpy")
            alike(np.asarray(x), np.asarray(plain), "asarray")
            alike(np.array(x), np.array(plain), "array")
            alike(np.asarray(x, dtype=np.float64), np.asarray(plain, dtype=np.float64), "asarray float64")
            alike(np.concatenate([x, x]), np.concatenate([plain, plain]), "concatenate")
            alike(np.mean(x.numpy(), 0), np.mean(plain.numpy(), 0), "mean")
            alike(np.abs(x.numpy()), np.abs(plain.numpy()), "abs")
            alike((x > 0).numpy(), (plain > 0).numpy(), "bools")
            alike(x.argmax(1).numpy(), plain.argmax(1).numpy(), "integers")
            same(torch.from_numpy(x.numpy()), plain, "and back")
            same(torch.as_tensor(x), plain, "as_tensor")
            same(torch.tensor(x.tolist()), plain, "tensor of a list")
            same(torch.tensor([float(v) for v in x[0]]), plain[0], "tensor of numbers")
            same(torch.tensor([x[0, 0], x[1, 1]]), torch.tensor([plain[0, 0], plain[1, 1]]), "tensor of scalars")
            same(x + np.float32(2), plain + np.float32(2), "NumPy number")
            same(x * np.ones(3, dtype=np.float32).sum(), plain * 3, "NumPy sum")
            alike(np.random.RandomState(0).permutation(len(x)), np.random.RandomState(0).permutation(ROWS), "len")
            array = np.arange(10)
            alike(array[x.argmax(1).numpy()], array[plain.argmax(1).numpy()], "index of an array")


def check_copies_and_files() -> None:
    plain = _data()
    for sizes, x in shards(plain):
        with case(sizes):
            same(pickle.loads(pickle.dumps(x)), plain, "pickle")
            same(pickle.loads(pickle.dumps({"a": [x, 1]})), {"a": [plain, 1]}, "pickle of a nest")
            same(copy.deepcopy(x), plain, "deepcopy")
            same(copy.copy(x), plain, "copy")
            twin = copy.deepcopy(x)
            twin += 1
            same(x, plain, "deepcopy is another tensor")
            buffer = io.BytesIO()
            torch.save({"outputs": x, "loss": x.sum()}, buffer)
            buffer.seek(0)
            same(torch.load(buffer, weights_only=True), {"outputs": plain, "loss": plain.sum()}, "save and load")
            tracked = (x.clone().requires_grad_() * 2).detach()
            same(copy.deepcopy(tracked), plain * 2, "deepcopy of a detached one")
            raises(RuntimeError, "deepcopy with history", copy.deepcopy, x.clone().requires_grad_() * 2)
            same(samestep.whole(x).storage().size(), plain.storage().size(), "storage")


def check_kinds() -> None:
    plain = _data()
    for sizes, x in shards(plain):
        with case(sizes):
            true(isinstance(x, torch.Tensor), "isinstance")
            true(torch.is_tensor(x), "is_tensor")
            true(torch.is_floating_point(x) and not torch.is_complex(x), "is_floating_point")
            true(not isinstance(x, nn.Parameter), "is no Parameter")
            same(x.dtype, plain.dtype, "dtype")
            same(x.type(), plain.type(), "type")
            same(x.device, plain.device, "device")
            same(x.layout, plain.layout, "layout")
            same(x.is_contiguous(), True, "is_contiguous")
            same(x.element_size(), 4, "element_size")
            same(x.nbytes, plain.nbytes, "nbytes")
            same(x.stride(), plain.stride(), "stride")
            same(x.is_leaf, True, "is_leaf")
            same(x.requires_grad, False, "requires_grad")
            same(x.grad_fn, None, "grad_fn")
            same(hasattr(x, "numpy"), True, "hasattr")
            same(torch.equal(x, plain), True, "equal to whole")
            same(torch.equal(plain, x), True, "whole equal")
            same(torch.allclose(x, plain + 1e-9), True, "allclose")
            same(x.is_sparse, False, "is_sparse")
            same(torch.numel(x), plain.numel(), "numel")
            same(torch.result_type(x, 2), torch.float32, "result_type")
            same(x.storage_offset(), 0, "storage_offset")
            x.tag = "mine"  # type: ignore[attr-defined]
            same(x.tag, "mine", "attribute")  # type: ignore[attr-defined]
            parameter = nn.Parameter(x.mean(0))
            same(parameter, plain.mean(0), "Parameter of it")
            same(isinstance(parameter, nn.Parameter) and parameter.requires_grad, True, "Parameter's kind")
            model = nn.Linear(3, 1)
            with torch.no_grad():
                model.weight.copy_(x[:1])
                model.bias.fill_(x.sum())
            same(model.weight, plain[:1].clone(), "copied into a parameter")
            same(model.bias, plain.sum().view(1), "filled into a parameter")
            model.register_buffer("mean", torch.zeros(3))
            model.mean = x.mean(0)
            same(model.mean, plain.mean(0), "set as a buffer")
            same(model.state_dict()["mean"], plain.mean(0), "in a state_dict")
