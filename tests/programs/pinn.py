"""A physics-informed network: second derivatives of the output with respect to the input, and boundary conditions."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
        self.diffusion = nn.Parameter(torch.tensor(0.1))

    def forward(self, x, t):
        return self.net(torch.cat([x, t], dim=1))


def derivative(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


torch.manual_seed(54)
points = torch.rand(90, 2)
loader = DataLoader(TensorDataset(points[:, :1], points[:, 1:]), batch_size=16, shuffle=True)
edge_x = torch.linspace(0, 1, 11).unsqueeze(1)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(3):
    for x, t in loader:
        x.requires_grad_(True)
        t.requires_grad_(True)
        u = model(x, t)
        u_t, u_x = derivative(u, t), derivative(u, x)
        residual = u_t + u * u_x - model.diffusion * derivative(u_x, x)
        initial = model(edge_x, torch.zeros_like(edge_x)) + torch.sin(torch.pi * edge_x)
        loss = residual.pow(2).mean() + initial.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} residual {residual.pow(2).mean().item():.5f} initial {initial.pow(2).mean().item():.5f}")
    print(f"diffusion {model.diffusion.item():.5f} steepest {u_x.abs().max().item():.4f}")

torch.save(model.state_dict(), sys.argv[1])
