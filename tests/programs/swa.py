"""Stochastic weight averaging: AveragedModel, SWALR, and update_bn over the loader."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(57)
x = torch.randn(69, 1, 6, 6)
y = (x[:, 0, 0].sum(1) > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(96, 2))
averaged = AveragedModel(model)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
scheduler = SWALR(optimizer, swa_lr=0.005, anneal_epochs=2)

for epoch in range(4):
    for data, target in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        ema.update_parameters(model)
    if epoch >= 2:
        averaged.update_parameters(model)
        scheduler.step()
    print(f"epoch {epoch} loss {loss.item():.4f} lr {optimizer.param_groups[0]['lr']:.4f}")

update_bn(loader, averaged)
with torch.no_grad():
    averaged.eval()
    print("right", sum((averaged(d).argmax(1) == t).sum().item() for d, t in loader), int(averaged.n_averaged))
torch.save({"model": model.state_dict(), "swa": averaged.state_dict(), "ema": ema.state_dict()}, sys.argv[1])
