"""Gradient accumulation over three micro-batches, clipping, warm-up and a cosine schedule."""

import math
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 3

torch.manual_seed(8)
x = torch.randn(165, 10)
y = torch.randint(0, 5, (165,))
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: min(1.0, (step + 1) / 3) * 0.5 * (1 + math.cos(math.pi * step / 12))
)

for epoch in range(3):
    optimizer.zero_grad()
    for i, (xb, yb) in enumerate(loader):
        loss = F.cross_entropy(model(xb), yb) / ACCUMULATE
        loss.backward()
        if (i + 1) % ACCUMULATE == 0 or i + 1 == len(loader):
            norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.25)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            lr = optimizer.param_groups[0]["lr"]
            print(f"epoch {epoch} batch {i} loss {loss.item() * ACCUMULATE:.4f} norm {norm:.4f} lr {lr:.5f}")

torch.save(model.state_dict(), sys.argv[1])
