"""Distillation: a frozen teacher in evaluation mode, soft targets at a temperature, features matched by a projector."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, width), nn.BatchNorm1d(width), nn.ReLU())
        self.head = nn.Linear(width, 4)

    def forward(self, x, is_feat=False):
        features = self.body(x)
        logits = self.head(features)
        return ([x, features], logits) if is_feat else logits


torch.manual_seed(46)
x, y = torch.randn(83, 10), torch.randint(0, 4, (83,))
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
teacher, student, projector = Net(32), Net(8), nn.Linear(8, 32)
for p in teacher.parameters():
    p.requires_grad_(False)
teacher.eval()
trainable = nn.ModuleList([student, projector])
optimizer = torch.optim.SGD(trainable.parameters(), lr=0.02, momentum=0.9, nesterov=True)
T, alpha = 4.0, 0.7

for epoch in range(2):
    trainable.train()
    agree = 0
    for data, target in loader:
        with torch.no_grad():
            teacher_features, teacher_logits = teacher(data, is_feat=True)
        features, logits = student(data, is_feat=True)
        soft = F.kl_div(F.log_softmax(logits / T, dim=1), F.softmax(teacher_logits / T, dim=1), reduction="batchmean")
        hint = F.mse_loss(projector(features[-1]), teacher_features[-1].detach())
        loss = alpha * T * T * soft + (1 - alpha) * F.cross_entropy(logits, target) + 0.5 * hint
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        agree += (logits.argmax(1) == teacher_logits.argmax(1)).sum().item()
    print(f"epoch {epoch} loss {loss.item():.4f} soft {soft.item():.5f} hint {hint.item():.4f} agree {agree}/{len(x)}")

torch.save(trainable.state_dict(), sys.argv[1])
