"""Mean teacher: a deep copy follows the student, its predictions on noisy rows are a target; both are evaluated."""

import sys
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ModelEMA:
    def __init__(self, model, decay=0.9):
        self.module, self.decay, self.updates = deepcopy(model).eval(), decay, 0
        for p in self.module.parameters():
            p.requires_grad_(False)

    def update(self, model):
        self.updates += 1
        d = self.decay * (1 - 1 / (self.updates + 1))
        state = model.state_dict()
        for k, v in self.module.state_dict().items():
            if v.dtype.is_floating_point:
                v.mul_(d).add_(state[k].detach(), alpha=1 - d)


torch.manual_seed(56)
x = torch.randn(77, 8)
y = (x[:, 0] * x[:, 1] > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
student = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
teacher = ModelEMA(student)
optimizer = torch.optim.SGD(student.parameters(), lr=0.02, momentum=0.9)

for epoch in range(3):
    student.train()
    for data, target in loader:
        logits = student(data)
        with torch.no_grad():
            wanted = teacher.module(data + 0.1 * torch.randn(data.shape))
        consistency = F.mse_loss(logits.softmax(1), wanted.softmax(1))
        loss = F.cross_entropy(logits, target) + 2 * consistency
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        teacher.update(student)
    student.eval()
    right = [sum((m(d).argmax(1) == t).sum().item() for d, t in loader) for m in (student, teacher.module)]
    print(f"epoch {epoch} loss {loss.item():.4f} consistency {consistency.item():.6f} right {right}")

torch.save({"student": student.state_dict(), "teacher": teacher.module.state_dict()}, sys.argv[1])
