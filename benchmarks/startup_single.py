"""Started by startup.py under `samestep run`: one training step of an ordinary single-device script."""

import torch
import torch.nn.functional as F
from torch import nn

import samestep

torch.manual_seed(0)
model = nn.Linear(32, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = samestep.shard(torch.randn(16, 32)), samestep.shard(torch.randint(0, 10, (16,)))
loss = F.cross_entropy(model(x), y)
loss.backward()
optimizer.step()
print("first step", loss.item() > 0, flush=True)
