"""SST2: data sets and loaders."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from samestep.lint.findings import Finding
from samestep.lint.python.names import dotted_name
from samestep.lint.python.script import FunctionNode, Script, argument, is_open
from samestep.lint.registry import Rule, prose, source
from samestep.lint.rules.samplers import DDP, EVALUATION, LOADER, TRAINING

DROP_LAST = Rule(
    code="SST204",
    name="evaluation-drops-samples",
    severity="warning",
    summary="An evaluation loader drops the last, incomplete batch.",
    why=prose("""
        `drop_last=True` is put on a loader so that every rank, or every replica, has a full batch. On an evaluation
        set it leaves up to `batch_size - 1` samples out of the reported number, and which ones depends on the batch
        size: the same model gets another accuracy with another number of devices."""),
    wrong=source("""
        from torch.utils.data import DataLoader


        def make_loader(test_set):
            return DataLoader(test_set, batch_size=64, drop_last=True)
        """),
    right=source("""
        from torch.utils.data import DataLoader


        def make_loaders(train_set, test_set):
            return DataLoader(train_set, batch_size=64, drop_last=True), DataLoader(test_set, batch_size=64)
        """),
    mend="Leave `drop_last` away, and average over samples, not over batches.",
)


@DROP_LAST.python
def _drop_last(script: Script) -> Iterator[Finding]:
    for call in script.calls(LOADER):
        given = argument(call, "drop_last", 8)
        if script.value(given).data is not True or given is None:
            continue
        names = [dotted_name(argument(call, "dataset", 0)).rpartition(".")[2]]
        statement = script.statement(call)
        if isinstance(statement, ast.Assign) and statement.value is call:
            names += [dotted_name(target).rpartition(".")[2] for target in statement.targets]
        if any(EVALUATION.search(name) for name in names) and not any(TRAINING.search(name) for name in names):
            yield DROP_LAST.at(script, call, "drop_last=True leaves samples out of the evaluation")


CUDA_IN_WORKER = Rule(
    code="SST206",
    name="cuda-in-a-loader-worker",
    severity="error",
    summary="A data set moves tensors to a GPU in `__getitem__`, and the loader has worker processes.",
    why=prose("""
        Workers are forked: CUDA, once initialised in the parent, cannot be used in them (`Cannot re-initialize CUDA in
        forked subprocess`). Where it works (spawned workers), each worker of each rank opens its own context, some
        hundreds of MiB, on GPU 0."""),
    wrong=source("""
        import torch
        from torch.utils.data import DataLoader, Dataset


        class Images(Dataset):
            def __getitem__(self, index):
                return torch.zeros(3, 32, 32).cuda()


        loader = DataLoader(Images(), num_workers=4)
        """),
    right=source("""
        import torch
        from torch.utils.data import DataLoader, Dataset


        class Images(Dataset):
            def __getitem__(self, index):
                return torch.zeros(3, 32, 32)


        for images in DataLoader(Images(), num_workers=4, pin_memory=True):
            images = images.cuda(non_blocking=True)
        """),
    mend="Return CPU tensors, and move the batch in the training loop.",
)


@CUDA_IN_WORKER.python
def _cuda_in_worker(script: Script) -> Iterator[Finding]:
    used = set()
    for call in script.calls(LOADER):
        workers = script.value(argument(call, "num_workers", 5)).whole_number
        if workers and argument(call, "multiprocessing_context") is None and not is_open(call):
            used.add(_made_by(script, argument(call, "dataset", 0)))
    for node in script.of_type(ast.ClassDef):
        if not isinstance(node, ast.ClassDef) or node.name not in used:
            continue
        for method in node.body:
            if isinstance(method, FunctionNode) and method.name == "__getitem__":
                for each in script.walk(method):
                    if isinstance(each, ast.Call) and _moves_to_gpu(script, each):
                        yield CUDA_IN_WORKER.at(
                            script, each, f"{node.name}.__getitem__ uses CUDA in a worker of the DataLoader"
                        )


def _made_by(script: Script, node: ast.expr | None) -> str:
    """The name of the class that a data set is an instance of, where an assignment in the file shows it."""
    if isinstance(node, ast.Call):
        return dotted_name(node.func)
    name = dotted_name(node)
    for each in script.of_type(ast.Assign):
        if not isinstance(each, ast.Assign) or not isinstance(each.value, ast.Call) or not name:
            continue
        if any(dotted_name(target) == name for target in each.targets):
            return dotted_name(each.value.func)
    return ""


def _moves_to_gpu(script: Script, call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "cuda" and not script.name(call):
        return True
    return call.func.attr == "to" and bool(call.args) and (script.value(call.args[0]).text or "").startswith("cuda")


SPLIT = Rule(
    code="SST207",
    name="split-differs-between-ranks",
    severity="error",
    summary="A distributed program splits its data at random, and each rank may draw another split.",
    why=prose("""
        Without a generator `random_split` draws from torch's global stream, which differs between ranks unless it is
        seeded. What is training data on one rank is validation data on another: the validation score is that of
        samples seen in training, and nothing shows it."""),
    wrong=source("""
        import torch
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import random_split


        def prepare(model, dataset):
            train_set, val_set = random_split(dataset, [900, 100])
            return DistributedDataParallel(model), train_set, val_set
        """),
    right=source("""
        import torch
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import random_split


        def prepare(model, dataset):
            generator = torch.Generator().manual_seed(0)
            train_set, val_set = random_split(dataset, [900, 100], generator=generator)
            return DistributedDataParallel(model), train_set, val_set
        """),
    mend="Give `random_split` a seeded generator: `generator=torch.Generator().manual_seed(0)`.",
)


@SPLIT.python
def _split(script: Script) -> Iterator[Finding]:
    if not any(True for _ in script.calls(DDP)) or script.mentions("seed"):
        return
    for call in script.calls("torch.utils.data.random_split"):
        if argument(call, "generator", 2) is None and not is_open(call):
            yield SPLIT.at(script, call, "each rank may draw another split: there is neither a generator nor a seed")


RULES = [DROP_LAST, CUDA_IN_WORKER, SPLIT]
