"""Losses whose denominators are not the number of rows: class weights, label smoothing, pos_weight, KL."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(12)
x = torch.randn(149, 10)
classes = (x[:, 0] > 1).long() + (x[:, 1] > 0).long()
tags = (x[:, 2:6] > 0.5).float()
loader = DataLoader(TensorDataset(x, classes, tags), batch_size=16, shuffle=True)

trunk = nn.Sequential(nn.Linear(10, 24), nn.ReLU())
class_head, tag_head = nn.Linear(24, 3), nn.Linear(24, 4)
parameters = [p for module in (trunk, class_head, tag_head) for p in module.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.1)

weighted = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 3.0]))
smoothed = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]), label_smoothing=0.1)
tagged = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2.0, 3.0, 4.0]))
soft = nn.KLDivLoss(reduction="batchmean")

for epoch in range(3):
    sums = torch.zeros(5)
    for xb, cb, tb in loader:
        hidden = trunk(xb)
        logits, tag_logits = class_head(hidden), tag_head(hidden)
        log_p = F.log_softmax(logits, dim=1)
        near = F.one_hot(cb, 3).float() * 0.8 + 0.2 / 3
        terms = [
            weighted(logits, cb),
            smoothed(logits, cb),
            tagged(tag_logits, tb),
            soft(log_p, near),
            F.nll_loss(log_p, cb, weight=torch.tensor([1.0, 0.5, 2.0]), ignore_index=1),
        ]
        loss = sum(terms)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sums += torch.stack([term.detach() for term in terms])
    print(f"epoch {epoch} terms", " ".join(f"{value:.4f}" for value in (sums / len(loader)).tolist()))

torch.save({"trunk": trunk.state_dict(), "c": class_head.state_dict(), "t": tag_head.state_dict()}, sys.argv[1])
