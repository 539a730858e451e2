"""Models that return their loss: a mean over the rows, a sum, a list of several, called through a wrapper module."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class WithLoss(nn.Module):
    def __init__(self, reduction):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
        self.criterion = nn.CrossEntropyLoss(reduction=reduction)

    def forward(self, x, y):
        return self.criterion(self.body(x), y)


class FullModel(nn.Module):
    """As semantic segmentation code has it: the model and the loss in one module, for data parallelism."""

    def __init__(self, model, loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, inputs, labels):
        outputs = self.model(inputs)
        loss = self.loss(outputs, labels)
        return torch.unsqueeze(loss, 0), outputs, [loss.detach(), (outputs.argmax(1) == labels).float().mean()]


torch.manual_seed(62)
x = torch.randn(75, 6)
y = x[:, :3].argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
mean, total = WithLoss("mean"), WithLoss("sum")
full = FullModel(nn.Linear(6, 3), nn.CrossEntropyLoss())
models = nn.ModuleList([mean, total, full])
optimizer = torch.optim.SGD(models.parameters(), lr=0.01, momentum=0.9)

for epoch in range(3):
    for data, target in loader:
        losses, _, (seen, accuracy) = full(data, target)
        loss = mean(data, target) + 0.02 * total(data, target) + losses.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f} full {losses.item():.4f} {seen.item():.4f} {accuracy.item():.4f}")

torch.save(models.state_dict(), sys.argv[1])
