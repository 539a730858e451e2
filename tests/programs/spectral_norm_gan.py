"""A hinge GAN with spectral norm (power iterations in forward) and class-conditional batch norm."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import spectral_norm as old_spectral_norm
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, TensorDataset


class ConditionalNorm(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.bn, self.embed = nn.BatchNorm1d(width, affine=False), nn.Embedding(classes, width * 2)
        self.embed.weight.data[:, :width].normal_(1, 0.02)
        self.embed.weight.data[:, width:].zero_()

    def forward(self, x, y):
        gamma, beta = self.embed(y).chunk(2, dim=1)
        return gamma * self.bn(x) + beta


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 12, bias=False), ConditionalNorm(12, 3), nn.Linear(12, 6)

    def forward(self, z, y):
        return self.last(F.relu(self.norm(self.first(z), y)))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = spectral_norm(nn.Linear(6, 12)), old_spectral_norm(nn.Linear(12, 12))
        self.last, self.embed = spectral_norm(nn.Linear(12, 1)), nn.Embedding(3, 12)

    def forward(self, x, y):
        h = F.leaky_relu(self.second(F.leaky_relu(self.first(x), 0.1)), 0.1)
        return self.last(h) + (self.embed(y) * h).sum(dim=1, keepdim=True)


torch.manual_seed(76)
x, y = torch.randn(58, 6), torch.randint(0, 3, (58,))
loader = DataLoader(TensorDataset(x + y.unsqueeze(1), y), batch_size=16, shuffle=True)
g, d = Generator(), Discriminator()
optimizer_g = torch.optim.SGD(g.parameters(), lr=0.01)
optimizer_d = torch.optim.SGD(d.parameters(), lr=0.01)

for epoch in range(2):
    for real, labels in loader:
        for _ in range(2):
            fake = g(torch.randn(len(real), 4), labels).detach()
            loss_d = F.relu(1.0 - d(real, labels)).mean() + F.relu(1.0 + d(fake, labels)).mean()
            optimizer_d.zero_grad()
            loss_d.backward()
            optimizer_d.step()
        loss_g = -d(g(torch.randn(len(real), 4), labels), labels).mean()
        optimizer_g.zero_grad()
        loss_g.backward()
        optimizer_g.step()
    norm = torch.linalg.matrix_norm(d.first.weight, 2).item()
    print(f"epoch {epoch} D {loss_d.item():.4f} G {loss_g.item():.4f} spectral {norm:.4f} {fake.mean().item():.4f}")

torch.save({"g": g.state_dict(), "d": d.state_dict()}, sys.argv[1])
