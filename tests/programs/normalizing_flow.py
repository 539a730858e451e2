"""A RealNVP flow: log-determinants per row, likelihood under a torch distribution, sampling by the inverse."""

import sys

import torch
from torch import nn
from torch.distributions import Independent, Normal
from torch.utils.data import DataLoader, TensorDataset


class Coupling(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)
        self.net = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 8))

    def forward(self, x):
        s, t = self.net(x * self.mask).chunk(2, dim=1)
        s = torch.tanh(s) * (1 - self.mask)
        return x * s.exp() + t * (1 - self.mask), s.sum(dim=1)

    def inverse(self, z):
        s, t = self.net(z * self.mask).chunk(2, dim=1)
        s = torch.tanh(s) * (1 - self.mask)
        return (z - t * (1 - self.mask)) * torch.exp(-s)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        masks = [torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([0.0, 1.0, 0.0, 1.0])] * 2
        self.layers = nn.ModuleList([Coupling(mask) for mask in masks])

    def forward(self, x):
        total = x.new_zeros(x.size(0))
        for layer in self.layers:
            x, log_det = layer(x)
            total = total + log_det
        return x, total

    def log_prob(self, x):
        z, log_det = self(x)
        return Independent(Normal(torch.zeros(4), torch.ones(4)), 1).log_prob(z) + log_det

    @torch.no_grad()
    def sample(self, n):
        z = torch.randn(n, 4)
        for layer in reversed(self.layers):
            z = layer.inverse(z)
        return z


torch.manual_seed(75)
x = torch.randn(80, 4).abs() + 0.2 * torch.randn(80, 4)
loader = DataLoader(TensorDataset(x), batch_size=16 + 3, shuffle=True)
model = Flow()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

for epoch in range(3):
    for (rows,) in loader:
        loss = -model.log_prob(rows).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} nll {loss.item():.4f} sampled {model.sample(20).mean().item():.4f}")

torch.save(model.state_dict(), sys.argv[1])
