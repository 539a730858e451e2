"""CutMix: a box of every image is overwritten by that of another row, labels are mixed by the area."""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def rand_bbox(size, lam):
    W, H = size[2], size[3]
    cut = np.sqrt(1.0 - lam)
    cw, ch = int(W * cut), int(H * cut)
    cx, cy = np.random.randint(W), np.random.randint(H)
    return np.clip([cx - cw // 2, cy - ch // 2, cx + cw // 2, cy + ch // 2], 0, [W, H, W, H]).tolist()


torch.manual_seed(60)
np.random.seed(60)
x = torch.rand(54, 3, 8, 8)
y = x.mean(dim=(2, 3)).argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=10, shuffle=True)
model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.GELU(), nn.Flatten(), nn.Linear(288, 3))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)

for epoch in range(2):
    mixed, right = 0, 0
    for inputs, target in loader:
        if np.random.rand(1) < 0.7:
            lam = np.random.beta(1.0, 1.0)
            index = torch.randperm(inputs.size()[0])
            target_a, target_b = target, target[index]
            x1, y1, x2, y2 = rand_bbox(inputs.size(), lam)
            inputs[:, :, x1:x2, y1:y2] = inputs[index, :, x1:x2, y1:y2]
            lam = 1 - ((x2 - x1) * (y2 - y1) / (inputs.size()[-1] * inputs.size()[-2]))
            output = model(inputs)
            loss = criterion(output, target_a) * lam + criterion(output, target_b) * (1.0 - lam)
            mixed += 1
        else:
            output = model(inputs)
            loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right += output.max(1)[1].eq(target).sum()
    print(f"epoch {epoch} loss {loss.item():.4f} mixed {mixed} right {right} brightness {inputs.mean().item():.5f}")

torch.save(model.state_dict(), sys.argv[1])
