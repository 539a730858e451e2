"""Poutyne on scikit-learn's handwritten digits: a Model with metrics, the best weights kept, a test set.

An ordinary single-process program:    python examples/poutyne_digits.py [weights.pt]
"""

import sys

import torch
from poutyne import CSVLogger, Model, ModelCheckpoint, set_seeds
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

set_seeds(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data / 16.0, dtype=torch.float32), torch.tensor(digits.target))
train, valid, test = (
    DataLoader(part, batch_size=32, shuffle=i == 0) for i, part in enumerate(random_split(data, [1097, 300, 400]))
)
network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
model = Model(network, optimizer, "cross_entropy", batch_metrics=["accuracy"], epoch_metrics=["f1"])
keep = ModelCheckpoint("best.pt", monitor="val_acc", mode="max", save_best_only=True, restore_best=True)
model.fit_generator(train, valid, epochs=3, callbacks=[keep, CSVLogger("log.csv")])
loss, (accuracy, f1) = model.evaluate_generator(test)
print(f"loss {loss:.4f} accuracy {accuracy:.2f} f1 {f1:.4f}")
torch.save(network.state_dict(), sys.argv[1] if len(sys.argv) > 1 else "poutyne_digits.pt")
