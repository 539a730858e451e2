"""`nn.DataParallel(model)`: one line more than for one device.

samestep run data_parallel.py weights.pt
"""

import torch
from task import BATCH, CUDA, datasets, finish, loss_of, network, optimizer_of
from torch.utils.data import DataLoader

device = "cuda" if CUDA else "cpu"
train, test = datasets()
model = torch.nn.DataParallel(network().to(device))
optimizer = optimizer_of(model)
for x, y in DataLoader(train, batch_size=BATCH):
    optimizer.zero_grad()
    loss_of(model, x.to(device), y.to(device)).backward()
    optimizer.step()
right = seen = 0
with torch.no_grad():
    for x, y in DataLoader(test, batch_size=BATCH):
        right += (model(x.to(device)).argmax(dim=1) == y.to(device)).sum().item()
        seen += y.size(0)
finish(model.module, right, seen)
