"""Ignite's own way to XLA devices, `idist.Parallel(backend="xla-tpu")`, and without a backend on the CPU."""

import sys

if sys.argv[2] == "cpu":
    sys.modules["torch_xla"] = None  # where it can be imported, Ignite 0.5.5 fails on the CPU, too

import ignite.distributed as idist
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Loss
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def training(local_rank, weights):
    torch.manual_seed(0)
    x = torch.randn(103, 8)
    y = x[:, :3].argmax(dim=1)
    loader = DataLoader(TensorDataset(x, y), batch_size=16)
    device = idist.device()
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    trainer = create_supervised_trainer(model, optimizer, criterion, device=device)
    metrics = {"accuracy": Accuracy(), "loss": Loss(criterion)}
    evaluator = create_supervised_evaluator(model, metrics=metrics, device=device)

    @trainer.on(Events.EPOCH_COMPLETED)
    def report(engine):
        evaluator.run(loader)
        values = evaluator.state.metrics
        print(f"rank {idist.get_rank()} of {idist.get_world_size()} epoch {engine.state.epoch}", end=" ")
        print(f"loss {engine.state.output:.4f} accuracy {values['accuracy']:.4f} {values['loss']:.4f}")

    trainer.run(loader, max_epochs=2)
    torch.save({name: value.cpu() for name, value in model.state_dict().items()}, weights)


if __name__ == "__main__":
    with idist.Parallel(backend="xla-tpu" if sys.argv[2] == "xla" else None) as parallel:
        parallel.run(training, sys.argv[1])
