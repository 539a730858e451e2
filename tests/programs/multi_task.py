"""Several heads in a dict, losses weighted by learned uncertainties, a meter for every task."""

import sys
from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Faces(Dataset):
    def __init__(self, n):
        generator = torch.Generator().manual_seed(47)
        self.x = torch.randn(n, 9, generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        row = self.x[i]
        labels = {"age": row.sum().abs(), "sex": int(row[0] > 0), "tags": (row[1:5] > 0).float()}
        return {"image": row, "labels": labels, "name": f"face{i}"}


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(9, 20), nn.PReLU())
        self.heads = nn.ModuleDict({"age": nn.Linear(20, 1), "sex": nn.Linear(20, 2), "tags": nn.Linear(20, 4)})
        self.log_vars = nn.ParameterDict({name: nn.Parameter(torch.zeros(())) for name in self.heads})

    def forward(self, x):
        hidden = self.trunk(x)
        return {name: head(hidden) for name, head in self.heads.items()}


torch.manual_seed(47)
loader = DataLoader(Faces(59), batch_size=16, shuffle=True)
model = MultiTask()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(3):
    meters = defaultdict(list)
    for batch in loader:
        output, labels = model(batch["image"]), batch["labels"]
        losses = {
            "age": F.smooth_l1_loss(output["age"].squeeze(-1), labels["age"]),
            "sex": F.cross_entropy(output["sex"], labels["sex"]),
            "tags": F.binary_cross_entropy_with_logits(output["tags"], labels["tags"]),
        }
        loss = sum(torch.exp(-model.log_vars[k]) * v + 0.5 * model.log_vars[k] for k, v in losses.items())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for name, value in losses.items():
            meters[name].append(value.item())
        meters["exact"].append(((output["tags"] > 0) == labels["tags"].bool()).all(dim=1).float().mean().item())
    print(f"epoch {epoch}", {k: f"{sum(v) / len(v):.4f}" for k, v in meters.items()}, batch["name"][:2])

torch.save(model.state_dict(), sys.argv[1])
