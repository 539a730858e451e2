"""Batches taken by hand: iter and next over two loaders, one of them restarted when it is used up; no loader at all."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(15)
x, y = torch.randn(53, 9), torch.randint(0, 3, (53,))
unlabelled = torch.randn(37, 9)
labelled_loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True, drop_last=True)
unlabelled_loader = DataLoader(TensorDataset(unlabelled), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

labelled, more = iter(labelled_loader), iter(unlabelled_loader)
for step in range(10):
    try:
        xb, yb = next(labelled)
    except StopIteration:
        labelled = iter(labelled_loader)
        xb, yb = next(labelled)
    try:
        (ub,) = next(more)
    except StopIteration:
        more = iter(unlabelled_loader)
        (ub,) = next(more)
    entropy = -(F.softmax(model(ub), dim=1) * F.log_softmax(model(ub), dim=1)).sum(dim=1).mean()
    loss = F.cross_entropy(model(xb), yb) + 0.3 * entropy
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} rows {len(xb)}+{len(ub)} loss {loss.item():.4f} entropy {entropy.item():.4f}")

for epoch in range(2):
    order = torch.randperm(len(x))
    for begin in range(0, len(x), 16):
        rows = order[begin : begin + 16]
        loss = F.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"by slices: epoch {epoch} loss {loss.item():.4f} of {len(rows)} rows")

torch.save(model.state_dict(), sys.argv[1])
