"""Sharpness-aware minimisation: two backward passes per step, batch norm frozen in the second."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base = base(self.param_groups, **kwargs)

    @torch.no_grad()
    def first_step(self):
        norms = [p.grad.norm(p=2) for group in self.param_groups for p in group["params"] if p.grad is not None]
        scale = self.param_groups[0]["rho"] / (torch.norm(torch.stack(norms), p=2) + 1e-12)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["old"] = p.data.clone()
                    p.add_(p.grad * scale)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old"]
        self.base.step()
        self.zero_grad()


def running_stats(model, on):
    for m in model.modules():
        if isinstance(m, nn.BatchNorm1d):
            m.backup, m.momentum = (m.momentum, 0) if not on else (m.backup, m.backup)


torch.manual_seed(81)
x = torch.randn(66, 7)
y = (x[:, 0] > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=14, shuffle=True)
model = nn.Sequential(nn.Linear(7, 14, bias=False), nn.BatchNorm1d(14), nn.ReLU(), nn.Linear(14, 2))
optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.05, lr=0.02, momentum=0.9)

for epoch in range(2):
    for data, target in loader:
        running_stats(model, True) if hasattr(model[1], "backup") else None
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.first_step()
        running_stats(model, False)
        second = F.cross_entropy(model(data), target)
        second.backward()
        optimizer.second_step()
    print(f"epoch {epoch} loss {loss.item():.4f} second {second.item():.4f} mean {model[1].running_mean.norm():.4f}")

torch.save(model.state_dict(), sys.argv[1])
