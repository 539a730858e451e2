"""Penalties that the script computes from the parameters: L2 on the weights, L1 on the first layer."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(6)
x = torch.randn(133, 12)
y = torch.randint(0, 3, (133,))
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for epoch in range(3):
    for xb, yb in loader:
        data_term = F.cross_entropy(model(xb), yb)
        l2 = sum(p.pow(2).sum() for name, p in model.named_parameters() if name.endswith("weight"))
        l1 = model[0].weight.abs().mean()
        loss = data_term + 1e-2 * l2 + 0.1 * l1
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    print(f"epoch {epoch} loss {loss:.4f} = {data_term:.4f} + {l2:.4f} + {l1:.4f}, gradient norm {norm.item():.4f}")

torch.save(model.state_dict(), sys.argv[1])
