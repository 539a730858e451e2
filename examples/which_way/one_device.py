"""The program as one writes it for one device: what all the other ways are measured against.

python one_device.py weights.pt
samestep run one_device.py weights.pt                         # every GPU
samestep run --devices 1,3 one_device.py weights.pt           # GPUs 1 and 3
CUDA_VISIBLE_DEVICES=1,3 samestep run one_device.py weights.pt
"""

import torch
from task import BATCH, CUDA, datasets, finish, loss_of, network, optimizer_of
from torch.utils.data import DataLoader

device = "cuda" if CUDA else "cpu"
train, test = datasets()
model = network().to(device)
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
finish(model, right, seen)
