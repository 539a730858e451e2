"""Mixed precision: the forward in bfloat16 under autocast, weights and the optimizer in single precision."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(59)
x = torch.randn(60, 12)
y = (x[:, :3].argmax(1)).long()
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(12, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", enabled=False)
# Twice the rows in one matrix product need not round alike in bfloat16: what is printed is kept short.
for epoch in range(2):
    right = 0
    for data, target in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(data)
            loss = F.cross_entropy(output, target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(optimizer)
        scaler.update()
        right += (output.argmax(1) == target).sum().item()
    print(f"epoch {epoch} loss {loss.item():.2f} right {right} {output.dtype} {model[0].weight.grad.dtype}")

torch.save(model.state_dict(), sys.argv[1])
