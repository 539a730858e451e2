"""PyTorch Ignite on scikit-learn's handwritten digits: a trainer, an evaluator, the best network kept.

An ordinary single-process program:    python examples/ignite_digits.py [weights.pt]
"""

import sys

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import ModelCheckpoint
from ignite.metrics import Accuracy, ConfusionMatrix, Loss
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data / 16.0, dtype=torch.float32), torch.tensor(digits.target))
train, test = random_split(data, [1397, 400])
train, test = DataLoader(train, batch_size=32, shuffle=True), DataLoader(test, batch_size=64)

model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
criterion = nn.CrossEntropyLoss()
trainer = create_supervised_trainer(model, optimizer, criterion)
metrics = {"accuracy": Accuracy(), "loss": Loss(criterion), "confusion": ConfusionMatrix(10)}
evaluator = create_supervised_evaluator(model, metrics=metrics)


@trainer.on(Events.EPOCH_COMPLETED)
def report(engine):
    values = evaluator.run(test).metrics
    print(f"epoch {engine.state.epoch} loss {values['loss']:.4f} accuracy {values['accuracy']:.4f}")


keep = ModelCheckpoint("best", "digits", score_name="accuracy", n_saved=1, require_empty=False)
evaluator.add_event_handler(Events.COMPLETED, keep, {"model": model})
trainer.run(train, max_epochs=3)
print("eights taken for ones:", int(evaluator.state.metrics["confusion"][8, 1]))
torch.save(model.state_dict(), sys.argv[1] if len(sys.argv) > 1 else "ignite_digits.pt")
