"""Poutyne: a Model and an Experiment with metrics, callbacks, a resumed run, and evaluation on a test set."""

import sys

import torch
from poutyne import Experiment, Model, set_seeds
from poutyne.framework.callbacks import (
    ClipNorm,
    CSVLogger,
    EarlyStopping,
    ModelCheckpoint,
    StepLR,
    TensorBoardLogger,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter
from torchmetrics.classification import MulticlassF1Score

set_seeds(0)
x = torch.randn(300, 8)
y = x[:, :3].argmax(dim=1)
train = DataLoader(TensorDataset(x[:133], y[:133]), batch_size=16, shuffle=True)
valid = DataLoader(TensorDataset(x[133:230], y[133:230]), batch_size=16)
test = DataLoader(TensorDataset(x[230:], y[230:]), batch_size=16)


def network():
    return nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))


def experiment(net):
    return Experiment(
        "experiment",
        net,
        device="cpu",
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
        loss_function="cross_entropy",
        batch_metrics=["accuracy"],
        epoch_metrics=["f1", MulticlassF1Score(3, average="macro")],
        monitor_metric="val_loss",
        monitor_mode="min",
    )


first = experiment(network())
first.train(train, valid, epochs=2, callbacks=[ClipNorm(first.model.network.parameters(), 1.0)])
net = network()
second = experiment(net)
history = second.train(
    train, valid, epochs=4, callbacks=[EarlyStopping(monitor="val_loss", patience=2)], keep_only_last_best=True
)
print([{name: round(float(v), 4) for name, v in sorted(row.items()) if name != "time"} for row in history])
second.test(test)

model = Model(net, torch.optim.SGD(net.parameters(), lr=0.05), "cross_entropy", batch_metrics=["acc"])
model.fit_generator(
    train,
    valid,
    epochs=2,
    progress_options={"coloring": False},
    batches_per_step=2,
    callbacks=[
        ModelCheckpoint("model_{epoch}.pt", monitor="val_acc", mode="max", save_best_only=True),
        CSVLogger("model.csv"),
        StepLR(step_size=1, gamma=0.5),
        TensorBoardLogger(SummaryWriter("board")),
    ],
)
loss, acc, predictions = model.evaluate_generator(test, return_pred=True)
print(f"loss {loss:.4f} acc {acc:.2f} predicted", predictions.argmax(axis=1).tolist())
print("on a batch", round(float(model.evaluate_on_batch(x[:10], y[:10])[0]), 4))
torch.save(net.state_dict(), sys.argv[1])
