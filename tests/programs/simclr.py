"""NT-Xent as SimCLR has it: both views in one batch of 2N rows, the diagonal masked out."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def nt_xent(z, temperature=0.5):
    n = z.shape[0] // 2
    z = F.normalize(z, dim=-1)
    similarity = torch.matmul(z, z.T) / temperature
    similarity = similarity.masked_fill(torch.eye(2 * n, dtype=torch.bool), float("-inf"))
    target = torch.cat([torch.arange(n) + n, torch.arange(n)])
    return F.cross_entropy(similarity, target)


torch.manual_seed(5)
x = torch.randn(101, 16)
loader = DataLoader(TensorDataset(x), batch_size=16, shuffle=True)
encoder = nn.Sequential(nn.Linear(16, 24), nn.ReLU())
head = nn.Linear(24, 8)
optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1, weight_decay=1e-4)

for epoch in range(3):
    for step, (xb,) in enumerate(loader):
        views = torch.cat([xb * 1.1, xb.flip(1)], dim=0)
        loss = nt_xent(head(encoder(views)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in (0, 3, 6):
            print(f"epoch {epoch} step {step} pairs {len(xb)} loss {loss.item():.4f}")

torch.save({"encoder": encoder.state_dict(), "head": head.state_dict()}, sys.argv[1])
