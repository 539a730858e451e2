"""SimCLR as one module: both views go in, the NT-Xent loss over the whole batch comes out."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SimCLR(nn.Module):
    def __init__(self, temperature=0.5):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24), nn.ReLU())
        self.projector = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 8))
        self.temperature = temperature

    def forward(self, a, b):
        z = F.normalize(torch.cat([self.projector(self.backbone(a)), self.projector(self.backbone(b))]), dim=1)
        n = a.size(0)
        similarity = z @ z.t() / self.temperature
        similarity.fill_diagonal_(-1e9)
        target = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
        accuracy = (similarity.argmax(dim=1) == target).float().mean()
        return F.cross_entropy(similarity, target), accuracy


torch.manual_seed(43)
loader = DataLoader(TensorDataset(torch.randn(77, 16)), batch_size=16, shuffle=True)
model = SimCLR()
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)

for epoch in range(2):
    for (x,) in loader:
        loss, accuracy = model(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} rows {len(x)} loss {loss.item():.4f} accuracy {accuracy.item():.4f}")

torch.save(model.state_dict(), sys.argv[1])
