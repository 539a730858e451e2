"""Regression: mean squared error, then smooth L1, summed and averaged by hand as well."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
x = torch.randn(149, 8)
y = x[:, :3].pow(2).sum(dim=1, keepdim=True) + 0.1 * torch.randn(149, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)

model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
losses = {
    "mse": nn.MSELoss(),
    "smooth_l1": nn.SmoothL1Loss(beta=0.5),
    "sum": lambda out, target: F.l1_loss(out, target, reduction="sum") / target.shape[0],
    "by hand": lambda out, target: ((out - target) ** 2).mean() + 0.1 * (out - target).abs().mean(),
}

for name, criterion in losses.items():
    history = []
    for xb, yb in loader:
        out = model(xb)
        loss = criterion(out, yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.detach())
    print(f"{name}: first {history[0]:.4f} last {history[-1].item():.4f} mean {torch.stack(history).mean().item():.4f}")
    rmse = torch.sqrt(F.mse_loss(out.detach().squeeze(1), yb.squeeze(1)))
    worst = (out - yb).abs().max()
    print(f"{name}: rmse of the last batch {rmse:.4f} over {out.shape[0]} rows, largest error {worst:.4f}")

torch.save(model.state_dict(), sys.argv[1])
