"""`DataLoader`: every batch, made whole, is the batch of one process; order, lengths and random streams too."""

from __future__ import annotations

import random
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)

import samestep
from inside.claims import case, same, true, world
from samestep.data.loader import _original_get_iterator

Sample = namedtuple("Sample", ["x", "y"])
SIZE = 23


def _plain(loader: DataLoader[Any]) -> list[Any]:
    """The batches that one process gets from this loader: torch's own iterator."""
    return list(_original_get_iterator(loader))


def _alike_on_all_ranks(value: object, text: str) -> None:
    everyone = world().all_gather_objects(repr(value))
    true(all(one == everyone[0] for one in everyone), f"{text} differs between the ranks")


def _compare(make: Callable[[], DataLoader[Any]], epochs: int = 2) -> None:
    """Two epochs of the loader under Samestep against two of torch's, and the script's streams after each."""
    results = []
    for iterate in (list, _plain):
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        loader = make()
        seen: list[Any] = [len(loader) if not isinstance(loader.dataset, IterableDataset) else None]
        for _ in range(epochs):
            seen.append([samestep.whole(batch) for batch in iterate(loader)])
            seen.append([torch.rand(1).item(), random.random()])
        results.append(seen)
    same(results[0], results[1])
    _alike_on_all_ranks(results[0][2::2], "the random stream")


class Numbers(Dataset[Any]):
    """Samples of one kind, made from their index."""

    def __init__(self, kind: str = "tuple", size: int = SIZE) -> None:
        self.kind, self.size = kind, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> Any:
        x = torch.full((2,), float(i))
        match self.kind:
            case "tuple":
                return x, i
            case "list":
                return [x, [i, float(i)]]
            case "tensor":
                return x
            case "dict":
                return {"x": x, "y": i, "name": f"sample {i}", "deeper": {"z": x * 2, "names": [f"a{i}", f"b{i}"]}}
            case "namedtuple":
                return Sample(x, i)
            case "str":
                return f"sample {i}", x
            case "int":
                return i
            case "float":
                return float(i)
            case "bool":
                return x, i % 2 == 0
            case "numpy":
                return np.full((2, 2), i, dtype=np.float32), np.int64(i)
            case "strings only":
                return f"sample {i}"
            case "bytes":
                return b"%d" % i, x
            case "scalar tensor":
                return torch.tensor(i), x
            case "image":
                return torch.full((3, 4, 4), float(i)), i
        raise KeyError(self.kind)


KINDS = ["tuple", "list", "tensor", "dict", "namedtuple", "str", "int", "float", "bool", "numpy", "bytes", "image"]
KINDS += ["strings only", "scalar tensor"]


def check_every_kind_of_sample() -> None:
    for kind in KINDS:
        with case(kind):
            _compare(lambda k=kind: DataLoader(Numbers(k), batch_size=5))


def check_orders_and_batch_sizes() -> None:
    for size in (0, 1, 2, 5, SIZE):
        for batch in (1, 2, 5, 50):
            for shuffle in (False, True):
                for drop in (False, True):
                    if size == 0 and shuffle:  # a random sampler refuses an empty data set
                        continue
                    with case((size, batch, shuffle, drop)):
                        _compare(
                            lambda n=size, b=batch, s=shuffle, d=drop: DataLoader(
                                Numbers(size=n), batch_size=b, shuffle=s, drop_last=d
                            )
                        )


def check_samplers() -> None:
    data = Numbers()
    weights = [float(i % 3 + 1) for i in range(SIZE)]
    makers: dict[str, Callable[[], DataLoader[Any]]] = {
        "sequential": lambda: DataLoader(data, 4, sampler=SequentialSampler(data)),
        "random": lambda: DataLoader(data, 4, sampler=RandomSampler(data)),
        "replacement": lambda: DataLoader(data, 4, sampler=RandomSampler(data, replacement=True, num_samples=30)),
        "weighted": lambda: DataLoader(data, 4, sampler=WeightedRandomSampler(weights, 17)),
        "list": lambda: DataLoader(data, 4, sampler=[3, 1, 2, 2, 22, 0, 5]),
        "generator": lambda: DataLoader(data, 4, shuffle=True, generator=torch.Generator().manual_seed(7)),
        "batches": lambda: DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 4, True)),
        "list of batches": lambda: DataLoader(data, batch_sampler=[[0, 1, 2], [3], [4, 5, 6, 7, 8, 9], [10, 11]]),
        "tuples as batches": lambda: DataLoader(data, batch_sampler=[(0, 1, 2), (3, 4)]),
        "tensors as batches": lambda: DataLoader(data, batch_sampler=[torch.tensor([0, 1, 2]), torch.tensor([5, 4])]),
        "subset": lambda: DataLoader(Subset(data, range(3, 20)), 4, shuffle=True),
        "random split": lambda: DataLoader(random_split(data, [15, 8])[0], 4, shuffle=True),
        "concat": lambda: DataLoader(ConcatDataset([data, data]), 7),
        "tensor data set": lambda: DataLoader(TensorDataset(torch.arange(46.0).view(23, 2), torch.arange(23)), 4, True),
        "list data set": lambda: DataLoader([(torch.tensor([float(i)]), i) for i in range(9)], 4),  # type: ignore
        "pinned": lambda: DataLoader(data, 4, pin_memory=False),
    }
    for name, make in makers.items():
        with case(name):
            _compare(make)


def _doubled(samples: list[Any]) -> Any:
    x, y = default_collate(samples)
    return x * 2, y


def _padded(samples: list[Any]) -> Any:
    longest = max(i for _, i in samples) % 5 + 1
    return torch.stack([x[:1].expand(longest) for x, _ in samples]), torch.tensor([i for _, i in samples])


def _mixed(samples: list[Any]) -> Any:
    x, y = default_collate(samples)
    return x + x.mean(0), y


def _mixed_randomly(samples: list[Any]) -> Any:
    x, y = default_collate(samples)
    order = torch.randperm(len(x))
    share = random.random()
    return x * share + x[order] * (1 - share), y, y[order], share


def _time_first(samples: list[Any]) -> Any:
    return torch.stack([x for x, _ in samples], 1), torch.tensor([i for _, i in samples])


def _as_list(samples: list[Any]) -> Any:
    return samples


def _as_lists(samples: list[Any]) -> Any:
    return [x for x, _ in samples], [i for _, i in samples]


def _flat(samples: list[Any]) -> Any:
    return torch.cat([x.expand(i % 3 + 1, 2) for x, i in samples]), [i % 3 + 1 for _, i in samples]


def _dropping(samples: list[Any]) -> Any:
    return default_collate([s for s in samples if s[1] % 4]) if any(s[1] % 4 for s in samples) else None


def _counted(samples: list[Any]) -> Any:
    return {"x": torch.stack([x for x, _ in samples]), "count": len(samples), "longest": torch.tensor(len(samples))}


COLLATES = [_doubled, _padded, _mixed, _mixed_randomly, _time_first, _as_list, _as_lists, _flat, _dropping, _counted]


def check_collate_functions() -> None:
    for collate in COLLATES:
        for batch in (1, 5):
            with case((collate.__name__, batch)):
                _compare(lambda c=collate, b=batch: DataLoader(Numbers(), b, shuffle=True, collate_fn=c))


def check_rowwise_collate_functions() -> None:
    with case("marked"):
        _compare(lambda: DataLoader(Numbers(), 5, shuffle=True, collate_fn=samestep.rowwise(lambda s: _doubled(s))))


class Stream(IterableDataset[Any]):
    """Reads in order; splits itself among workers, as torch's documentation shows."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        start, step = (info.id, info.num_workers) if info else (0, 1)
        for i in range(start, self.size, step):
            yield torch.full((2,), float(i)), i


def check_iterable_data_sets() -> None:
    for batch in (1, 5, 50):
        for drop in (False, True):
            for workers in (0, 2):
                with case((batch, drop, workers)):
                    _compare(lambda b=batch, d=drop, w=workers: DataLoader(Stream(), b, drop_last=d, num_workers=w), 1)
    for size in (0, 1):
        with case(("size", size)):
            _compare(lambda n=size: DataLoader(Stream(n), 5), 1)
    with case("batch_size=None"):
        _compare(lambda: DataLoader(Stream(), batch_size=None))


class Batches(Dataset[Any]):
    """Gives whole batches, for `batch_size=None`."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        rows = torch.arange(i * 5, i * 5 + 5 - (i == 3) * 4)
        return rows.float().view(-1, 1), rows


def check_no_automatic_batching() -> None:
    with case("batches"):
        _compare(lambda: DataLoader(Batches(), batch_size=None))
    with case("batches, shuffled"):
        _compare(lambda: DataLoader(Batches(), batch_size=None, shuffle=True))
    with case("samples"):
        _compare(lambda: DataLoader(Numbers(), batch_size=None))
    with case("a sampler of batches"):
        sampler = BatchSampler(SequentialSampler(range(SIZE)), 5, False)
        data = TensorDataset(torch.arange(46.0).view(23, 2), torch.arange(23))
        _compare(lambda: DataLoader(data, sampler=sampler, batch_size=None))
