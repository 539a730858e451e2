"""Catalyst on scikit-learn's handwritten digits: a supervised runner with accuracy and the best checkpoint.

An ordinary single-process program:    python examples/catalyst_digits.py [weights.pt]
How to install Catalyst 22.4 today is in docs/frameworks.md.
"""

import sys

import torch
from catalyst import dl, utils
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

utils.set_global_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data / 16.0, dtype=torch.float32), torch.tensor(digits.target))
train, valid = random_split(data, [1397, 400])
loaders = {"train": DataLoader(train, batch_size=32, shuffle=True), "valid": DataLoader(valid, batch_size=64)}
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
runner = dl.SupervisedRunner()
runner.train(
    model=model,
    criterion=nn.CrossEntropyLoss(),
    optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    loaders=loaders,
    num_epochs=3,
    callbacks=[dl.AccuracyCallback(input_key="logits", target_key="targets")],
    logdir="logs",
    valid_loader="valid",
    valid_metric="accuracy01",
    minimize_valid_metric=False,
    load_best_on_end=True,
)
right = 0
for prediction, (_, labels) in zip(runner.predict_loader(loader=loaders["valid"]), loaders["valid"], strict=True):
    right += (prediction["logits"].argmax(dim=1) == labels).sum().item()
print(f"right {right} of {len(valid)}")
torch.save(model.state_dict(), sys.argv[1] if len(sys.argv) > 1 else "catalyst_digits.pt")
