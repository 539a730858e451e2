"""torchmetrics on scikit-learn's handwritten digits: a plain loop whose numbers come from a collection of metrics.

An ordinary single-process program:    python examples/torchmetrics_digits.py [weights.pt]
"""

import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score

torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data / 16.0, dtype=torch.float32), torch.tensor(digits.target))
train, test = random_split(data, [1397, 400])
train, test = DataLoader(train, batch_size=32, shuffle=True), DataLoader(test, batch_size=64)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scores = MetricCollection([MulticlassAccuracy(10), MulticlassF1Score(10), MulticlassAUROC(10)])
loss_mean = MeanMetric()
for epoch in range(3):
    for images, labels in train:
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_mean.update(loss, len(images))
    with torch.no_grad():
        for images, labels in test:
            scores.update(model(images).softmax(dim=1), labels)
    values = {name: round(value.item(), 4) for name, value in scores.compute().items()}
    print(f"epoch {epoch} loss {loss_mean.compute():.4f} {values}")
    scores.reset()
    loss_mean.reset()
torch.save(model.state_dict(), sys.argv[1] if len(sys.argv) > 1 else "torchmetrics_digits.pt")
