"""Gradients with respect to the inputs: FGSM training, a saliency map and a gradient penalty by autograd.grad."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(18)
x = torch.rand(85, 1, 6, 6)
y = (x[:, 0, :3].sum(dim=(1, 2)) > x[:, 0, 3:].sum(dim=(1, 2))).long()
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.Softplus(), nn.Flatten(), nn.Linear(96, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

for epoch in range(2):
    for xb, yb in loader:
        xb.requires_grad_()
        F.cross_entropy(model(xb), yb).backward()
        attack = (xb + 0.03 * xb.grad.sign()).clamp(0, 1).detach()
        optimizer.zero_grad()
        clean, attacked = F.cross_entropy(model(xb.detach()), yb), F.cross_entropy(model(attack), yb)
        (0.5 * clean + 0.5 * attacked).backward()
        optimizer.step()
    print(f"epoch {epoch} clean {clean.item():.4f} attacked {attacked.item():.4f} gradient {xb.grad.norm().item():.5f}")

for xb, yb in loader:
    xb.requires_grad_(True)
    loss = F.cross_entropy(model(xb), yb)
    (gradient,) = torch.autograd.grad(loss, xb, create_graph=True)
    penalty = (gradient.view(gradient.size(0), -1).norm(2, dim=1) * len(xb) - 0.5).pow(2).mean()
    optimizer.zero_grad()
    (loss + 0.1 * penalty).backward()
    optimizer.step()
print(f"penalty {penalty.item():.4f} saliency {gradient.abs().amax(dim=(1, 2, 3)).sum().item():.5f}")

torch.save(model.state_dict(), sys.argv[1])
