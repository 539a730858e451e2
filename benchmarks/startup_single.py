"""Started by startup.py under `samestep run`: one training step of an ordinary single-device script."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Linear(32, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(TensorDataset(torch.randn(16, 32), torch.randint(0, 10, (16,))), batch_size=16):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    print("first step", loss.item() > 0, flush=True)
