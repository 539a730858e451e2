"""Cross-entropy classification, the usual loop."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(161, 20)
y = (x[:, :5].sum(1) > 0).long() + 2 * (x[:, 5] > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
print("batches", len(loader), "rows", len(loader.dataset))

model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

for epoch in range(3):
    total, correct, seen = 0.0, 0, 0
    for step, (xb, yb) in enumerate(loader):
        optimizer.zero_grad()
        logits = model(xb)
        loss = F.cross_entropy(logits, yb)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(xb)
        correct += (logits.argmax(1) == yb).sum().item()
        seen += xb.size(0)
        if step % 5 == 0:
            print(f"epoch {epoch} step {step} [{xb.size(0)}] loss {loss.item():.4f}")
    print(f"epoch {epoch} loss {total / seen:.4f} accuracy {correct}/{seen}")

torch.save(model.state_dict(), sys.argv[1])
