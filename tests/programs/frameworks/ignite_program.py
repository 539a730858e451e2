"""Ignite in one process: supervised trainer and evaluator, Accuracy, Loss, ConfusionMatrix, a running average."""

import sys

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, ConfusionMatrix, Loss, Precision, RunningAverage
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(230, 8)
y = x[:, :3].argmax(dim=1)
train = DataLoader(TensorDataset(x[:133], y[:133]), batch_size=16, shuffle=True)
test = DataLoader(TensorDataset(x[133:], y[133:]), batch_size=16)
model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()

trainer = create_supervised_trainer(model, optimizer, criterion, device="cpu")
RunningAverage(output_transform=lambda loss: loss).attach(trainer, "smoothed")
metrics = {
    "accuracy": Accuracy(),
    "loss": Loss(criterion),
    "confusion": ConfusionMatrix(num_classes=3),
    "precision": Precision(average=False),
}
evaluator = create_supervised_evaluator(model, metrics=metrics, device="cpu")


@trainer.on(Events.EPOCH_COMPLETED)
def report(engine):
    print(f"epoch {engine.state.epoch} loss {engine.state.output:.4f} smoothed {engine.state.metrics['smoothed']:.4f}")
    evaluator.run(test)
    values = evaluator.state.metrics
    print(f"test accuracy {values['accuracy']:.4f} loss {values['loss']:.4f}")
    print("precision", [round(value, 3) for value in values["precision"].tolist()])
    print(values["confusion"].tolist())


trainer.run(train, max_epochs=3)
torch.save(model.state_dict(), sys.argv[1])
