"""SST2: samplers of distributed programs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from samestep.lint.findings import Edit, Finding, InsertStatement, SetArgument
from samestep.lint.python.names import dotted_name
from samestep.lint.python.reach import speaks_of_processes, speaks_of_ranks, tests_around
from samestep.lint.python.script import Script, argument, identifiers, is_open
from samestep.lint.registry import Rule, prose, source

DDP = "torch.nn.parallel.DistributedDataParallel"
LOADER = "torch.utils.data.DataLoader"
SAMPLER = "torch.utils.data.distributed.DistributedSampler"
EVALUATION = re.compile(
    r"(^|_)(val|valid|validation|test|testing|eval|evaluate|evaluation|validate|dev)(_|$|loader|set|data|dl|ds)",
    re.IGNORECASE,
)
TRAINING = re.compile(r"train", re.IGNORECASE)

NO_SAMPLER = Rule(
    code="SST201",
    name="no-distributed-sampler",
    severity="error",
    summary="A program with DistributedDataParallel shuffles its data without a DistributedSampler.",
    why=prose("""
        Each rank then goes through the whole data set: an epoch on N devices takes N times the work, every sample is
        seen N times, and nothing is gained by the devices. Nothing fails, so it is found late or never."""),
    wrong=source("""
        import torch
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader


        def train(model, dataset, device):
            model = DistributedDataParallel(model.to(device))
            loader = DataLoader(dataset, batch_size=16, shuffle=True)
            for images, labels in loader:
                model(images).sum().backward()
        """),
    right=source("""
        import torch
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler


        def train(model, dataset, device):
            model = DistributedDataParallel(model.to(device))
            sampler = DistributedSampler(dataset)
            loader = DataLoader(dataset, batch_size=16, sampler=sampler)
            for epoch in range(3):
                sampler.set_epoch(epoch)
                for images, labels in loader:
                    model(images).sum().backward()
        """),
    mend="Give the loader `sampler=DistributedSampler(dataset)` instead of `shuffle=True`, and call `set_epoch`.",
)
_DIVIDES = ("sampler", "prepare", "setup_dataloaders", "split_dataset_by_node", "random_split", "shard", "subset")


@NO_SAMPLER.python
def _no_sampler(script: Script) -> Iterator[Finding]:
    if not any(True for _ in script.calls(DDP)) or any(script.mentions(word) for word in _DIVIDES):
        return
    for call in script.calls(LOADER):
        if is_open(call) or script.value(argument(call, "shuffle", 2)).data is not True:
            continue
        words = identifiers(call) | _origin(script, argument(call, "dataset", 0))
        wanders = any(speaks_of_ranks(ast.Name(word)) for word in words)
        guarded = any(speaks_of_ranks(t.test) or speaks_of_processes(t.test) for t, _ in tests_around(script, call))
        if not wanders and not guarded:
            yield NO_SAMPLER.at(
                script, call, "each rank goes through the whole data set: there is no DistributedSampler"
            )


def _origin(script: Script, node: ast.expr | None) -> set[str]:
    """The words in every assignment to the data set's name."""
    name = dotted_name(node)
    words: set[str] = set()
    for each in script.of_type(ast.Assign):
        if isinstance(each, ast.Assign) and any(dotted_name(target) == name for target in each.targets) and name:
            words |= identifiers(each.value)
    return words


SET_EPOCH = Rule(
    code="SST202",
    name="set-epoch-missing",
    severity="error",
    summary="A DistributedSampler shuffles, and `set_epoch` is never called.",
    why=prose("""
        A DistributedSampler seeds its shuffle with its seed plus the epoch number that it is told. Without `set_epoch`
        every epoch has the same order and the same batches, on each rank the same samples: shuffling happens once."""),
    wrong=source("""
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler


        def train(dataset, step):
            sampler = DistributedSampler(dataset)
            loader = DataLoader(dataset, batch_size=16, sampler=sampler)
            for epoch in range(10):
                for batch in loader:
                    step(batch)
        """),
    right=source("""
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler


        def train(dataset, step):
            sampler = DistributedSampler(dataset)
            loader = DataLoader(dataset, batch_size=16, sampler=sampler)
            for epoch in range(10):
                sampler.set_epoch(epoch)
                for batch in loader:
                    step(batch)
        """),
    mend="Call `sampler.set_epoch(epoch)` at the beginning of each epoch.",
    fixed=source("""
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler


        def train(dataset, step):
            sampler = DistributedSampler(dataset)
            loader = DataLoader(dataset, batch_size=16, sampler=sampler)
            for epoch in range(10):
                sampler.set_epoch(epoch)
                for batch in loader:
                    step(batch)
        """),
)


@SET_EPOCH.python
def _set_epoch(script: Script) -> Iterator[Finding]:
    if any(script.mentions(word) for word in ("set_epoch", ".prepare", "setup_dataloaders")):
        return
    for call in script.calls(SAMPLER):
        shuffled = argument(call, "shuffle", 3)
        if is_open(call) or (shuffled is not None and script.value(shuffled).data is not True):
            continue
        epochs = _epoch_loop(script, call)
        if epochs is not None:
            fix: tuple[Edit, ...] = ()
            statement = script.statement(call)
            if isinstance(statement, ast.Assign) and statement.value is call and isinstance(epochs.target, ast.Name):
                line = f"{script.source(statement.targets[0])}.set_epoch({epochs.target.id})"
                fix = (InsertStatement(script.span(epochs), line, "inside"),)
            yield SET_EPOCH.at(script, call, "without set_epoch(epoch) every epoch has the same order", *fix)


def _epoch_loop(script: Script, sampler: ast.Call) -> ast.For | None:
    """The loop over epochs in the sampler's function that holds the loop over a loader, behind the sampler."""
    for loop in script.of_type(ast.For):
        if not isinstance(loop, ast.For) or script.function(loop) is not script.function(sampler):
            continue
        is_epochs = isinstance(loop.target, ast.Name) and loop.target.id.lower().startswith(("epoch", "ep", "e"))
        counted = isinstance(loop.iter, ast.Call) and dotted_name(loop.iter.func) in ("range", "trange", "tqdm.trange")
        inner = [each for each in script.walk(loop) if isinstance(each, ast.For) and each is not loop]
        if is_epochs and counted and loop.lineno > sampler.lineno and any(_over_loader(script, each) for each in inner):
            return loop
    return None


def _over_loader(script: Script, loop: ast.For) -> bool:
    return any(
        script.value(each).kind == "loader"
        for each in ast.walk(loop.iter)
        if isinstance(each, ast.Name | ast.Attribute)
    )


BOTH = Rule(
    code="SST203",
    name="shuffle-with-sampler",
    severity="error",
    summary="A DataLoader is given both a sampler and `shuffle=True`.",
    why=prose("""
        The order is the sampler's business: DataLoader raises `sampler option is mutually exclusive with shuffle`. It
        happens on the day on which a DistributedSampler is added to a script for one device."""),
    wrong=source("""
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler


        def make_loader(dataset):
            return DataLoader(dataset, shuffle=True, sampler=DistributedSampler(dataset))
        """),
    right=source("""
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler


        def make_loader(dataset, distributed):
            sampler = DistributedSampler(dataset) if distributed else None
            return DataLoader(dataset, shuffle=sampler is None, sampler=sampler)
        """),
    mend="Take `shuffle=True` away: a DistributedSampler shuffles by itself.",
    fixed=source("""
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler


        def make_loader(dataset):
            return DataLoader(dataset, sampler=DistributedSampler(dataset))
        """),
)


@BOTH.python
def _both(script: Script) -> Iterator[Finding]:
    for call in script.calls(LOADER):
        sampler = argument(call, "sampler", 3)
        if script.value(argument(call, "shuffle")).data is not True or sampler is None:
            continue
        value = script.value(sampler)
        made_here = isinstance(sampler, ast.Call) and script.name(sampler).startswith("torch.utils.data.")
        if made_here or (value.kind == "sampler" and value.certain and isinstance(sampler, ast.Name)):
            fix = SetArgument(script.span(call), "shuffle", None)
            literal = isinstance(argument(call, "shuffle"), ast.Constant)
            message = "DataLoader refuses shuffle=True beside a sampler: ValueError"
            yield BOTH.at(script, call, message, *((fix,) if literal else ()))


PADDED = Rule(
    code="SST205",
    name="evaluation-counts-twice",
    severity="warning",
    summary="A DistributedSampler divides an evaluation set; where that is uneven, samples are counted twice.",
    why=prose("""
        A DistributedSampler gives each rank the same number of samples by repeating some. Measured with 197 test
        samples on 2 ranks: DDP, Fabric and Ignite report the accuracy over 198 of 197 samples, Catalyst over 208
        (pytorch#25162, open since 2019; rf-detr#1507)."""),
    wrong=source("""
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler


        def make_loader(val_set):
            return DataLoader(val_set, sampler=DistributedSampler(val_set, shuffle=False))
        """),
    right=source("""
        from torch.utils.data import DataLoader, Subset


        def make_loader(val_set, rank, world_size):
            return DataLoader(Subset(val_set, range(rank, len(val_set), world_size)))
        """),
    mend=prose("""
        Give each rank its own part without padding, `Subset(val_set, range(rank, len(val_set), world_size))`, and add
        up sums and counts, not means, with one all_reduce at the end. Or evaluate with `samestep run`, which does it.
        """),
)


@PADDED.python
def _padded(script: Script) -> Iterator[Finding]:
    if any(script.mentions(word) for word in ("gather_for_metrics", "total_size")):
        return
    for call in script.calls(SAMPLER):
        given = argument(call, "dataset", 0)
        name = dotted_name(given).rpartition(".")[2]
        if is_open(call) or not EVALUATION.search(name) or TRAINING.search(name):
            continue
        if argument(call, "drop_last") is None and argument(call, "drop_last", 5) is None:
            yield PADDED.at(
                script, call, f"{name} is padded to a multiple of the number of ranks: some samples count twice"
            )


RULES = [NO_SAMPLER, SET_EPOCH, BOTH, PADDED]
