"""A one-stage detector on batched images: maps of several sizes; in evaluation a list of dicts, one per image."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class OneStage(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU())
        self.stages = nn.ModuleList([nn.Conv2d(6, 6, 3, stride=2, padding=1) for _ in range(2)])
        self.heads = nn.ModuleList([nn.Conv2d(6, 5, 1) for _ in range(3)])

    def forward(self, x):
        maps = [self.stem(x)]
        for stage in self.stages:
            maps.append(F.relu(stage(maps[-1])))
        outputs = [head(m) for head, m in zip(self.heads, maps)]
        if self.training:
            return outputs
        flat = torch.cat([o.flatten(2) for o in outputs], dim=2)
        return [
            {"scores": row[0].topk(3).values.sigmoid(), "boxes": row[1:, row[0].topk(3).indices].t()} for row in flat
        ]


torch.manual_seed(50)
x = torch.rand(38, 1, 8, 8)
targets = torch.cat([x.mean(dim=(2, 3)) > 0.5, x.amax(dim=(2, 3)), x.amin(dim=(2, 3)), x[:, :, 0, 0], x[:, :, 1, 1]], 1)
loader = DataLoader(TensorDataset(x, targets), batch_size=8, shuffle=True)
model = OneStage()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

for epoch in range(2):
    model.train()
    for images, target in loader:
        outputs = model(images)
        loss = 0
        for level in outputs:
            goal = target[:, :, None, None].expand(-1, -1, *level.shape[2:])
            loss = loss + F.binary_cross_entropy_with_logits(level[:, 0], goal[:, 0])
            loss = loss + F.smooth_l1_loss(level[:, 1:], goal[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}", [tuple(level.shape) for level in outputs])
    model.eval()
    with torch.no_grad():
        results = model(images)
    best = max(results, key=lambda r: r["scores"][0].item())
    print(len(results), f"best {best['scores'][0].item():.4f} box {[round(v, 3) for v in best['boxes'][0].tolist()]}")

torch.save(model.state_dict(), sys.argv[1])
