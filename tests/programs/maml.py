"""MAML: inner steps by autograd.grad with create_graph on a batch of support rows, the outer loss on the queries."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader, Dataset


class Sines(Dataset):
    def __len__(self):
        return 21

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        amplitude, phase = torch.rand(2, generator=g)
        x = torch.rand(10, 1, generator=g) * 6 - 3
        return x, (amplitude + 0.5) * torch.sin(x + phase * 3)


torch.manual_seed(55)
model = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(Sines(), batch_size=4, shuffle=True)

for epoch in range(2):
    for xs, ys in loader:
        outer = 0.0
        for x, y in zip(xs, ys):  # every task by itself
            weights = dict(model.named_parameters())
            for _ in range(2):
                inner = F.mse_loss(functional_call(model, weights, (x[:5],)), y[:5])
                slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
                weights = {k: w - 0.1 * s for (k, w), s in zip(weights.items(), slopes)}
            outer = outer + F.mse_loss(functional_call(model, weights, (x[5:],)), y[5:])
        optimizer.zero_grad()
        (outer / len(xs)).backward()
        optimizer.step()
    print(f"epoch {epoch} outer {outer.item() / len(xs):.4f} inner {inner.item():.4f}")

rows = DataLoader(Sines(), batch_size=8)
for xs, ys in rows:  # one task whose support rows are the batch
    x, y = xs[:, 0], ys[:, 0]
    weights = dict(model.named_parameters())
    slopes = torch.autograd.grad(F.mse_loss(model(x), y), list(weights.values()), create_graph=True)
    fast = {k: w - 0.05 * s for (k, w), s in zip(weights.items(), slopes)}
    loss = F.mse_loss(functional_call(model, fast, (xs[:, 1],)), ys[:, 1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"rows {len(x)} loss {loss.item():.4f} slope {slopes[0].norm().item():.4f}")

torch.save(model.state_dict(), sys.argv[1])
