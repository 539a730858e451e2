"""A model compiled by the default backend, trained on batches of several sizes."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
x, y = torch.randn(22, 4), torch.randint(0, 3, (22,))
loader = DataLoader(TensorDataset(x, y), batch_size=9)
model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.GELU(), nn.Linear(6, 3))
compiled = torch.compile(model)
reduced = torch.compile(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), mode="reduce-overhead")
optimizer = torch.optim.SGD([*model.parameters(), *reduced.parameters()], lr=0.1, momentum=0.9)


@torch.compile
def penalty(out):
    return (out**2).mean()


for epoch in range(2):
    for xb, yb in loader:
        optimizer.zero_grad()
        out = reduced(compiled(xb))
        loss = F.cross_entropy(out, yb) + 0.1 * penalty(out)
        loss.backward()
        optimizer.step()
        print(f"{epoch} {loss.item():.4f}")
model.eval()
with torch.no_grad():
    print(f"{compiled(x[:5]).sum().item():.3f}")
torch.save({"model": model.state_dict(), "reduced": reduced.state_dict()}, sys.argv[1])
