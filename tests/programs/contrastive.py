"""InfoNCE over the pairs of a batch, computed outside the model: every row is a negative of every other row."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)
base = torch.randn(117, 16)
first, second = base + 0.3 * torch.randn(117, 16), base + 0.3 * torch.randn(117, 16)
loader = DataLoader(TensorDataset(first, second), batch_size=16, shuffle=True)

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for epoch in range(3):
    total = top1 = seen = 0
    for a, b in loader:
        za, zb = F.normalize(model(a), dim=1), F.normalize(model(b), dim=1)
        logits = za @ zb.t() / 0.2
        labels = torch.arange(logits.size(0))
        loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * a.size(0)
        top1 += (logits.argmax(dim=1) == labels).sum().item()
        seen += a.size(0)
    print(f"epoch {epoch} loss {total / seen:.4f} found {top1} of {seen}")

torch.save(model.state_dict(), sys.argv[1])
