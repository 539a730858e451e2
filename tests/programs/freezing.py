"""Parameters that come and go: a trunk thawed later, a branch not taken, an unused head, a layer used twice."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(6, 12)
        self.extra = nn.Linear(12, 12)
        self.never = nn.Linear(12, 2)
        self.head = nn.Linear(12, 2)
        self.register_buffer("scale", torch.tensor(0.7))

    def forward(self, x, deep):
        h = torch.tanh(self.trunk(x))
        if deep:
            h = torch.tanh(self.extra(torch.tanh(self.extra(h)))) * self.scale
        return self.head(h)


torch.manual_seed(20)
x, y = torch.randn(81, 6), torch.randint(0, 2, (81,))
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
average = {name: p.detach().clone() for name, p in model.named_parameters()}

for epoch in range(4):
    model.trunk.requires_grad_(epoch >= 2)
    for step, (xb, yb) in enumerate(loader):
        loss = F.cross_entropy(model(xb, deep=step % 2 == 1), yb)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for name, p in model.named_parameters():
                average[name].mul_(0.9).add_(p, alpha=0.1)
    without = [name for name, p in model.named_parameters() if p.grad is None]
    print(f"epoch {epoch} loss {loss.item():.4f} without gradient {without}")

torch.save({"model": model.state_dict(), "average": average}, sys.argv[1])
