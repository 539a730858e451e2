"""A diffusion model: a time step per row, noise and schedule by the script, a moving average, ancestral sampling."""

import copy
import math
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 8


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time, self.conv1 = nn.Linear(8, 6), nn.Conv2d(1, 6, 3, padding=1)
        self.norm, self.conv2 = nn.GroupNorm(2, 6), nn.Conv2d(6, 1, 3, padding=1)

    def forward(self, x, t):
        frequencies = torch.exp(torch.arange(4, device=t.device) * -(math.log(100) / 3))
        angles = t[:, None].float() * frequencies[None, :]
        embedding = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1))
        h = self.norm(self.conv1(x)) + embedding[:, :, None, None]
        return self.conv2(F.silu(h))


torch.manual_seed(80)
betas = torch.linspace(0.02, 0.4, STEPS)
bars = torch.cumprod(1 - betas, dim=0)
loader = DataLoader(TensorDataset(torch.rand(53, 1, 6, 6) * 2 - 1), batch_size=10, shuffle=True)
model = Denoiser()
average = copy.deepcopy(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(2):
    by_step = torch.zeros(STEPS)
    for (x0,) in loader:
        t = torch.randint(0, STEPS, (x0.shape[0],)).long()
        noise = torch.randn_like(x0)
        scale = bars.gather(0, t).view(-1, 1, 1, 1)
        noisy = scale.sqrt() * x0 + (1 - scale).sqrt() * noise
        per_row = F.mse_loss(model(noisy, t), noise, reduction="none").flatten(1).mean(dim=1)
        weight = (1 / (1 + bars[t])).detach()
        loss = (per_row * weight).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        by_step.index_add_(0, t, per_row.detach())
        for kept, p in zip(average.parameters(), model.parameters()):
            kept.data.lerp_(p.data, 0.1)
    print(f"epoch {epoch} loss {loss.item():.4f} by step {[round(v, 2) for v in by_step.tolist()]}")

with torch.no_grad():
    x = torch.randn(3, 1, 6, 6)
    for step in reversed(range(STEPS)):
        predicted = average(x, torch.full((3,), step))
        x = (x - betas[step] / (1 - bars[step]).sqrt() * predicted) / (1 - betas[step]).sqrt()
        if step:
            x = x + betas[step].sqrt() * torch.randn_like(x)
print(f"sample {x.mean().item():.4f} {x.std().item():.4f}")
torch.save({"model": model.state_dict(), "average": average.state_dict()}, sys.argv[1])
