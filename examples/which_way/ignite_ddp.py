"""PyTorch Ignite in its distributed form: `idist.Parallel(backend="gloo")`, `auto_model`, `auto_dataloader`.

torchrun --nproc-per-node 2 ignite_ddp.py weights.pt
samestep run --devices cpu:2 ignite_ddp.py weights.pt
"""

import ignite.distributed as idist
from ignite.engine import create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy
from task import BATCH, CUDA, datasets, finish, network, optimizer_of
from torch import nn


class Seen(Accuracy):
    """How many samples the accuracy was made of, beside how many were right."""

    def compute(self):
        rate = super().compute()
        total = idist.all_reduce(self._num_examples)
        return rate * total, total


def training(local_rank: int) -> None:
    train, test = datasets()
    loader = idist.auto_dataloader(train, batch_size=BATCH, shuffle=False)
    model = idist.auto_model(network())
    optimizer = idist.auto_optim(optimizer_of(model))
    create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss(), device=idist.device()).run(loader, max_epochs=1)
    evaluator = create_supervised_evaluator(model, {"seen": Seen(device=idist.device())}, device=idist.device())
    right, seen = evaluator.run(idist.auto_dataloader(test, batch_size=BATCH, shuffle=False)).metrics["seen"]
    if idist.get_rank() == 0:
        finish(getattr(model, "module", model), right, seen)


if __name__ == "__main__":
    with idist.Parallel(backend="nccl" if CUDA else "gloo") as parallel:
        parallel.run(training)
