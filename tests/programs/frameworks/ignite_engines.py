"""Ignite: engines written by hand, with `idist.auto_*` inside `idist.Parallel(backend=None)`, as its tutorials do."""

import sys

import ignite.distributed as idist
import torch
import torch.nn.functional as F
from ignite.engine import Engine, Events
from ignite.handlers import CosineAnnealingScheduler, TerminateOnNan, Timer
from ignite.metrics import Accuracy, Average, MeanAbsoluteError, RunningAverage, TopKCategoricalAccuracy
from ignite.utils import manual_seed
from torch import nn
from torch.utils.data import TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.LayerNorm(32))
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.body(x))


def training(local_rank, config):
    rank = idist.get_rank()
    manual_seed(config["seed"] + rank)
    print("rank", rank, "of", idist.get_world_size(), "backend", idist.backend(), "device", idist.device())
    x = torch.randn(230, 8)
    y = x[:, :5].argmax(dim=1)
    train = idist.auto_dataloader(TensorDataset(x[:133], y[:133]), batch_size=16, shuffle=True, drop_last=False)
    test = idist.auto_dataloader(TensorDataset(x[133:], y[133:]), batch_size=32)
    model = idist.auto_model(Net())
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9))

    def step(engine, batch):
        model.train()
        inputs, targets = (part.to(idist.device()) for part in batch)
        logits = model(inputs)
        loss = F.cross_entropy(logits, targets, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss.item(), "norm": norm.item(), "y_pred": logits.detach(), "y": targets}

    def infer(engine, batch):
        model.eval()
        with torch.no_grad():
            inputs, targets = batch
            return model(inputs), targets

    trainer, evaluator = Engine(step), Engine(infer)
    scheduler = CosineAnnealingScheduler(optimizer, "lr", config["lr"], 0.01, len(train))
    trainer.add_event_handler(Events.ITERATION_STARTED, scheduler)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan(output_transform=lambda out: out["loss"]))
    Average(output_transform=lambda out: out["loss"]).attach(trainer, "mean_loss")
    RunningAverage(output_transform=lambda out: out["norm"]).attach(trainer, "norm")
    Accuracy(output_transform=lambda out: (out["y_pred"], out["y"])).attach(trainer, "accuracy")
    Timer(average=True).attach(trainer)
    Accuracy().attach(evaluator, "accuracy")
    TopKCategoricalAccuracy(k=2).attach(evaluator, "top2")
    MeanAbsoluteError(output_transform=lambda out: (out[0].argmax(dim=1).float(), out[1].float())).attach(
        evaluator, "mae"
    )

    @trainer.on(Events.ITERATION_COMPLETED(every=5))
    def log(engine):
        out = engine.state.output
        print(f"iteration {engine.state.iteration} loss {out['loss']:.4f} norm {out['norm']:.4f} rows {len(out['y'])}")

    @trainer.on(Events.EPOCH_COMPLETED)
    def validate(engine):
        evaluator.run(test)
        both = {**engine.state.metrics, **evaluator.state.metrics}
        print(f"epoch {engine.state.epoch}", {name: round(value, 4) for name, value in both.items()})

    trainer.run(train, max_epochs=config["epochs"])
    idist.barrier()
    total = idist.all_reduce(torch.tensor(trainer.state.iteration)).item()
    print("iterations over all processes", total)
    if idist.get_rank() == 0:
        torch.save(model.state_dict(), sys.argv[1])


if __name__ == "__main__":
    with idist.Parallel(backend=None) as parallel:
        parallel.run(training, {"seed": 3, "lr": 0.2, "epochs": 3})
