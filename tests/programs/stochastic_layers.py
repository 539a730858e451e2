"""Stochastic depth per row, random slopes, noise on activations, masks drawn by bernoulli."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def drop_path(x, rate, training):
    if not training:
        return x
    keep = 1 - rate
    shape = (x.shape[0],) + (1,) * (x.ndim - 1)
    mask = keep + torch.rand(shape, dtype=x.dtype, device=x.device)
    return x.div(keep) * mask.floor_()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.slopes = nn.Conv2d(1, 6, 3, padding=1), nn.RReLU()
        self.blocks = nn.ModuleList([nn.Conv2d(6, 6, 3, padding=1) for _ in range(3)])
        self.norm, self.head = nn.BatchNorm2d(6), nn.Linear(6, 2)

    def forward(self, x):
        x = self.slopes(self.norm(self.stem(x)))
        for i, block in enumerate(self.blocks):
            x = x + drop_path(torch.relu(block(x)), 0.2 * i, self.training)
        if self.training:
            x = x + 0.05 * torch.randn(x.shape)
            x = x * torch.bernoulli(torch.full_like(x[:, :, :1, :1], 0.9))
        return self.head(F.dropout2d(x, 0.1, self.training).mean(dim=(2, 3)))


torch.manual_seed(86)
x = torch.randn(58, 1, 6, 6)
loader = DataLoader(TensorDataset(x, (x.mean(dim=(1, 2, 3)) > 0).long()), batch_size=12, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

for epoch in range(2):
    model.train()
    for images, target in loader:
        loss = F.cross_entropy(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(b).argmax(1) == t).sum().item() for b, t in loader)
    print(f"epoch {epoch} loss {loss.item():.4f} right {right} next {torch.rand(()).item():.4f}")

torch.save(model.state_dict(), sys.argv[1])
