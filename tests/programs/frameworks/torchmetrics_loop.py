"""torchmetrics in a loop of one's own: collections, curves, regression and aggregation, a tracker, saved states."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric, MetricCollection, MetricTracker
from torchmetrics.classification import (
    BinaryF1Score,
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassAveragePrecision,
    MulticlassCalibrationError,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)
from torchmetrics.regression import MeanSquaredError, PearsonCorrCoef, R2Score, SpearmanCorrCoef
from torchmetrics.wrappers import ClasswiseWrapper, MinMaxMetric, MultioutputWrapper

torch.manual_seed(0)
x = torch.randn(230, 8)
y = x[:, :3].argmax(dim=1)
v = x @ torch.randn(8, 2)
train = DataLoader(TensorDataset(x[:133], y[:133], v[:133]), batch_size=16, shuffle=True)
test = DataLoader(TensorDataset(x[133:], y[133:], v[133:]), batch_size=16)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.classes, self.values = nn.Linear(8, 24), nn.Linear(24, 3), nn.Linear(24, 2)

    def forward(self, x):
        features = self.body(x).relu()
        return self.classes(features), self.values(features)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scores = MetricCollection(
    {
        "accuracy": MulticlassAccuracy(3),
        "f1": MulticlassF1Score(3, average="weighted"),
        "auroc": MulticlassAUROC(3),
        "ap": MulticlassAveragePrecision(3, thresholds=20),
        "ece": MulticlassCalibrationError(3, n_bins=5),
    }
)
tracker = MetricTracker(scores, maximize=True)
per_class = ClasswiseWrapper(MulticlassAccuracy(3, average=None))
confusion, binary = MulticlassConfusionMatrix(3), BinaryF1Score()
regression = MetricCollection([MultioutputWrapper(R2Score(), 2), MeanSquaredError(num_outputs=2)])
pearson, spearman = PearsonCorrCoef(num_outputs=2), SpearmanCorrCoef(num_outputs=2)
mean_loss, extremes = MeanMetric(), MinMaxMetric(MeanMetric())


def show(values):
    return {k: [round(n, 4) for n in t.flatten().tolist()] for k, t in values.items()}


for epoch in range(3):
    model.train()
    mean_loss.reset()
    for inputs, classes, values in train:
        logits, guess = model(inputs)
        loss = F.cross_entropy(logits, classes) + F.mse_loss(guess, values)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean_loss.update(loss, weight=len(inputs))
    print(f"epoch {epoch} loss {mean_loss.compute():.4f}")
    model.eval()
    tracker.increment()
    for metric in (per_class, confusion, binary, regression, pearson, spearman):
        metric.reset()
    with torch.no_grad():
        for i, (inputs, classes, values) in enumerate(test):
            logits, guess = model(inputs)
            batch = tracker(logits.softmax(dim=1), classes)
            per_class.update(logits, classes)
            confusion.update(logits, classes)
            binary(logits.argmax(dim=1) == 0, classes == 0)
            regression.update(guess, values)
            pearson.update(guess, values)
            spearman.update(guess, values)
            if i in (0, 6):
                print("batch", i, show(batch))
    print(show(tracker.compute()), confusion.compute().tolist())
    print(round(binary.compute().item(), 4), show(regression.compute()), show(per_class.compute()))
    print(show({"pearson": pearson.compute(), "spearman": spearman.compute()}), show(extremes(mean_loss.compute())))
    torch.save(confusion.state_dict(), f"metrics{epoch}.pt")
best, when = tracker.best_metric(return_step=True)
print({k: (round(float(b), 4), when[k]) for k, b in best.items() if k in ("accuracy", "f1")})
torch.save(model.state_dict(), sys.argv[1])
