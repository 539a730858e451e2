"""Barlow Twins and VICReg: losses over the features' covariance across the batch, batch norm without weights."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class BarlowTwins(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 6))
        self.bn = nn.BatchNorm1d(6, affine=False)

    def forward(self, y1, y2):
        z1, z2 = self.backbone(y1), self.backbone(y2)
        c = self.bn(z1).T @ self.bn(z2)
        c.div_(y1.size(0))
        on_diagonal = torch.diagonal(c).add_(-1).pow_(2).sum()
        off_diagonal = c.flatten()[:-1].view(5, 7)[:, 1:].flatten().pow_(2).sum()
        return on_diagonal + 0.05 * off_diagonal


def vicreg(x, y):
    repr_loss = F.mse_loss(x, y)
    x, y = x - x.mean(dim=0), y - y.mean(dim=0)
    std_loss = sum(torch.mean(F.relu(1 - torch.sqrt(v.var(dim=0) + 1e-4))) for v in (x, y)) / 2
    covariances = [(v.T @ v) / (v.shape[0] - 1) for v in (x, y)]
    cov_loss = sum(c[~torch.eye(6, dtype=torch.bool)].pow(2).sum() / 6 for c in covariances)
    return 25.0 * repr_loss + 25.0 * std_loss + cov_loss


torch.manual_seed(78)
loader = DataLoader(TensorDataset(torch.randn(71, 8)), batch_size=16, shuffle=True)
model = BarlowTwins()
expander = nn.Linear(8, 6)
optimizer = torch.optim.SGD([*model.parameters(), *expander.parameters()], lr=0.002, momentum=0.9, weight_decay=1e-6)

for epoch in range(2):
    for (x,) in loader:
        a, b = x + 0.2 * torch.randn(x.shape), x + 0.2 * torch.randn(x.shape)
        twins = model(a, b)
        invariance = vicreg(expander(a), expander(b))
        optimizer.zero_grad()
        (twins + 0.1 * invariance).backward()
        optimizer.step()
    print(f"epoch {epoch} twins {twins.item():.4f} vicreg {invariance.item():.4f}")

torch.save({"model": model.state_dict(), "expander": expander.state_dict()}, sys.argv[1])
