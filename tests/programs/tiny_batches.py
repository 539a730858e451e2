"""Fewer rows than devices: batches of two, and a last batch of one."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(21)
x, y = torch.randn(17, 5), torch.randint(0, 3, (17,))
loader = DataLoader(TensorDataset(x, y), batch_size=2, shuffle=True)
model = nn.Sequential(nn.Linear(5, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for epoch in range(2):
    worst = 0.0
    for xb, yb in loader:
        logits = model(xb)
        loss = F.cross_entropy(logits, yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        worst = max(worst, loss.item())
    print(f"epoch {epoch} worst {worst:.4f} last batch {tuple(logits.shape)} top {logits.max().item():.4f}")

model.eval()
with torch.no_grad():
    outputs = torch.cat([model(xb) for xb, _ in DataLoader(TensorDataset(x, y), batch_size=3)])
print(outputs.shape, outputs.argmax(dim=1).tolist())
torch.save(model.state_dict(), sys.argv[1])
