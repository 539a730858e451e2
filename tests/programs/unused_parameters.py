"""Parameters without a gradient on some steps: alternating heads, layers dropped by the script, one head never used."""

import random
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 10)
        self.layers = nn.ModuleList([nn.Linear(10, 10) for _ in range(4)])
        self.heads = nn.ModuleDict({"class": nn.Linear(10, 3), "value": nn.Linear(10, 1), "never": nn.Linear(10, 2)})

    def forward(self, x, task, keep):
        x = torch.relu(self.stem(x))
        for layer, kept in zip(self.layers, keep):
            if kept:
                x = x + torch.relu(layer(x))
        return self.heads[task](x)


torch.manual_seed(67)
random.seed(67)
x = torch.randn(70, 6)
loader = DataLoader(TensorDataset(x, x[:, :3].argmax(1), x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

for epoch in range(3):
    losses = {}
    for step, (data, kind, value) in enumerate(loader):
        task = ("class", "value")[step % 2]
        output = model(data, task, [random.random() < 0.7 for _ in range(4)])
        loss = F.cross_entropy(output, kind) if task == "class" else F.l1_loss(output, value)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[task] = loss.item()
    none = sorted(n for n, p in model.named_parameters() if p.grad is None and "bias" not in n)
    print(f"epoch {epoch}", {k: f"{v:.4f}" for k, v in losses.items()}, none)

torch.save(model.state_dict(), sys.argv[1])
