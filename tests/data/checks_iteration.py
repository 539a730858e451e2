"""How loops use a loader: workers, random augmentation, breaking off, two loaders at once, training to the end."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import samestep
from inside.claims import case, same, same_weights, true, twins, world
from samestep.data.loader import _original_get_iterator
from samestep.globalview.tensor import GlobalTensor

SIZE = 19


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, i: int) -> Any:
        return torch.full((2,), float(i)), i


class Augmented(Dataset[Any]):
    """Draws from all streams, and a number of times that depends on the sample."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, i: int) -> Any:
        noise = [torch.rand(1).item() for _ in range(i % 3 + 1)]
        return torch.full((2,), float(i)), i, noise[-1], random.random(), float(np.random.rand())


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for i in range(SIZE):
            yield torch.full((2,), float(i)), i


def _plain(loader: DataLoader[Any]) -> list[Any]:
    return list(_original_get_iterator(loader))


def _whole(batches: Any) -> list[Any]:
    return [samestep.whole(batch) for batch in batches]


def _pairs(samples: list[Any]) -> Any:
    return torch.stack([x for x, _ in samples]), len(samples)


def _loaders() -> dict[str, Callable[[], DataLoader[Any]]]:
    data = Numbers()
    return {
        "sequential": lambda: DataLoader(data, 4),
        "shuffled": lambda: DataLoader(data, 4, shuffle=True),
        "dropping": lambda: DataLoader(data, 4, shuffle=True, drop_last=True),
        "own collate": lambda: DataLoader(
            data, 4, shuffle=True, collate_fn=lambda s: (torch.stack([x for x, _ in s]), 1)
        ),
        "iterable": lambda: DataLoader(Stream(), 4),
    }


def check_workers() -> None:
    for shuffle, drop, persistent in itertools.product((False, True), repeat=3):
        for workers in (1, 2):
            with case((shuffle, drop, persistent, workers)):
                results = []
                for iterate in (list, _plain):
                    torch.manual_seed(3)
                    loader = DataLoader(
                        Numbers(),
                        4,
                        shuffle=shuffle,
                        drop_last=drop,
                        num_workers=workers,
                        persistent_workers=persistent and iterate is list,
                    )
                    # torch draws one base seed per iterator, but only at the first one of persistent workers.
                    epochs = 2 if not persistent else 1
                    results.append([[_whole(iterate(loader)) for _ in range(epochs)], torch.rand(2)])
                same(results[0], results[1])


def check_persistent_workers_over_epochs() -> None:
    loader = DataLoader(Numbers(), 4, shuffle=True, num_workers=2, persistent_workers=True)
    for epoch in range(3):
        with case(epoch):
            seen = sorted(int(i) for _, rows in _whole(loader) for i in rows)
            same(seen, list(range(SIZE)), "every sample once")
    for number, (x, rows) in enumerate(loader):
        same(x[:, 0], samestep.whole(rows).float(), "rows belong together")
        if number == 1:
            break
    seen = sorted(int(i) for _, rows in _whole(loader) for i in rows)
    same(seen, list(range(SIZE)), "every sample once after a break")
    del loader


def check_augmentation_does_not_move_the_scripts_streams() -> None:
    for workers in (0, 2):
        with case(workers):
            torch.manual_seed(3)
            random.seed(3)
            np.random.seed(3)
            truth: list[Any] = []
            for _ in range(2):
                truth.append([i for _, rows in _plain(DataLoader(Numbers(), 4, shuffle=True)) for i in rows.tolist()])
                truth.append([torch.rand(1).item(), random.random(), float(np.random.rand())])
            torch.manual_seed(3)
            random.seed(3)
            np.random.seed(3)
            got: list[Any] = []
            batches = []
            for _ in range(2):
                loader = DataLoader(Augmented(), 4, shuffle=True, num_workers=workers)
                batches.append(_whole(loader))
                got.append([i for batch in batches[-1] for i in batch[1].tolist()])
                got.append([torch.rand(1).item(), random.random(), float(np.random.rand())])
            same(got, truth, "order and streams")
            for kind, name in ((2, "torch"), (3, "random"), (4, "numpy")):
                drawn = [round(v, 9) for epoch in batches for batch in epoch for v in batch[kind].tolist()]
                # numpy and random are not seeded anew in the workers of a second epoch by torch before 2.9
                true(len(set(drawn)) == len(drawn), f"{name}: samples were augmented alike")


def check_augmentation_in_own_collate_is_that_of_one_process() -> None:
    def collate(samples: list[Any]) -> Any:
        x = torch.stack([s[0] for s in samples])
        return x + torch.rand(1), x * random.random(), x[torch.randperm(len(x))]

    results = []
    for iterate in (list, _plain):
        torch.manual_seed(3)
        random.seed(3)
        results.append(_whole(iterate(DataLoader(Numbers(), 4, shuffle=True, collate_fn=collate))))
        results.append([torch.rand(2), random.random()])
    same(results[0], results[2], "batches")
    same(results[1], results[3], "streams")


def check_breaking_off_and_starting_again() -> None:
    for name, make in _loaders().items():
        for workers in (0, 2):
            with case((name, workers)):
                results = []
                for iterate in (iter, _original_get_iterator):
                    torch.manual_seed(3)
                    loader = make()
                    if workers:
                        loader = DataLoader(Numbers(), 4, shuffle=True, num_workers=workers)
                    seen: list[Any] = []
                    for stop in (1, 3, 100):
                        for number, batch in enumerate(iterate(loader)):
                            seen.append(samestep.whole(batch))
                            if number == stop:
                                break
                    seen.append(samestep.whole(next(iter(iterate(loader)))))
                    results.append([seen, torch.rand(2)])
                same(results[0], results[1])


def check_iterators_by_hand() -> None:
    for name, make in _loaders().items():
        with case(name):
            results = []
            for iterate in (iter, _original_get_iterator):
                torch.manual_seed(3)
                loader = make()
                seen: list[Any] = []
                iterator = iterate(loader)
                for _ in range(7):
                    try:
                        batch = next(iterator)
                    except StopIteration:
                        iterator = iterate(loader)
                        batch = next(iterator)
                    seen.append(samestep.whole(batch))
                seen.append(samestep.whole(next(iterator, None)))
                seen.append(list(itertools.islice((len(b[0]) for b in iterate(loader)), 2)))
                results.append(seen)
            same(results[0], results[1])


def check_two_loaders_at_once() -> None:
    results = []
    for iterate in (iter, _original_get_iterator):
        torch.manual_seed(3)
        first, second = DataLoader(Numbers(), 4, shuffle=True), DataLoader(Augmented(), 3, shuffle=True, num_workers=0)
        third = DataLoader(Numbers(), 5, num_workers=1)
        seen = []
        for a, b, c in zip(iterate(first), iterate(second), iterate(third), strict=False):
            seen.append([samestep.whole(a), samestep.whole(b)[1], samestep.whole(c)])
        for outer in itertools.islice(iterate(third), 2):
            seen.append([samestep.whole(outer), [samestep.whole(inner)[1] for inner in iterate(third)]])
        results.append(seen)
    same(results[0], results[1])


def check_lengths_and_attributes() -> None:
    for name, make in _loaders().items():
        with case(name):
            loader = make()
            if name != "iterable":
                same(len(loader), 4 if name == "dropping" else 5, "len")
                same(len(list(loader)), len(loader), "number of batches")
                same(len(iter(loader)), len(loader), "len of the iterator")
            same([loader.batch_size, loader.num_workers, loader.drop_last], [4, 0, name == "dropping"], "attributes")
            same([len(b[0]) for b in loader][:2], [4, 4], "rows of a batch")
            for x, *_ in loader:
                same(x.size(0), len(x), "size(0)")
                same(isinstance(x, torch.Tensor), True, "kind")


def check_batches_are_split_when_they_have_a_row_for_each() -> None:
    for batch in DataLoader(Numbers(), 4):
        for tensor in batch:
            split = type(tensor) is GlobalTensor
            true(split == (len(tensor) >= world().size), f"a batch of {len(tensor)} rows: split is {split}")
            if split:
                sizes = [len(samestep.local(tensor))]
                everyone = [n for part in world().all_gather_objects(sizes) for n in part]
                true(sum(everyone) == len(tensor) and max(everyone) - min(everyone) <= 1, f"cut as {everyone}")


def check_each_rank_fetches_only_its_rows() -> None:
    fetched: list[int] = []

    class Watched(Numbers):
        def __getitem__(self, i: int) -> Any:
            fetched.append(i)
            return super().__getitem__(i)

    list(DataLoader(Watched(), 12, drop_last=True))
    everyone = world().all_gather_objects(fetched)
    same(sorted(i for part in everyone for i in part), list(range(12)), "every sample on one rank")


def _train(model: nn.Module, batches: Callable[[], Any], epochs: int) -> list[Any]:
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    log: list[Any] = []
    for _ in range(epochs):
        total, right, rows = 0.0, 0, 0
        for x, y in batches():
            optimizer.zero_grad()
            out = model(x)
            loss = F.cross_entropy(out, y)
            loss.backward()
            optimizer.step()
            total += loss.item() * x.size(0)
            right += (out.argmax(1) == y).sum().item()
            rows += len(x)
        log.append([total / rows, right / rows, rows])
    return log


def check_training_is_that_of_one_process() -> None:
    torch.manual_seed(8)
    data = TensorDataset(torch.randn(SIZE, 4), torch.randint(0, 3, (SIZE,)))
    for batch in (1, 2, 3, 4, 6, 18, 19, 50):
        for drop in (False, True):
            if drop and batch > SIZE:
                continue
            with case((batch, drop)):
                ours, truth = twins(lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)))
                loader = DataLoader(data, batch, shuffle=True, drop_last=drop)
                torch.manual_seed(4)
                got = _train(ours, lambda it=loader: it, 2)
                torch.manual_seed(4)
                expected = _train(truth, lambda it=loader: _plain(it), 2)
                same(got, expected, "log", scale=10)
                same_weights(ours, truth, scale=10)


def check_a_worker_that_fails_fails_on_every_rank() -> None:
    class Broken(Numbers):
        def __getitem__(self, i: int) -> Any:
            if i == 0:
                raise KeyError("broken sample")
            return super().__getitem__(i)

    for workers in (0, 2):
        caught = "nothing"
        try:
            # Every rank has a bad sample, so that none waits for another.
            list(DataLoader(Broken(), batch_sampler=[[0] * 12], num_workers=workers))
        except KeyError as error:
            caught = type(error).__name__
        same(caught, "KeyError", f"with {workers} workers")
