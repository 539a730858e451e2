"""Accelerate as one process: everything prepared, accumulation, a scheduler, gather_for_metrics."""

import sys

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

set_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
x = torch.randn(230, 8)
y = x[:, :3].argmax(dim=1)
train = DataLoader(TensorDataset(x[:133], y[:133]), batch_size=16, shuffle=True)
test = DataLoader(TensorDataset(x[133:], y[133:]), batch_size=16)
model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.7)
model, optimizer, train, test, scheduler = accelerator.prepare(model, optimizer, train, test, scheduler)
print(accelerator.num_processes, "process,", len(train), "batches")

for epoch in range(3):
    model.train()
    for inputs, targets in train:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    model.eval()
    correct = seen = 0
    for inputs, targets in test:
        with torch.no_grad():
            predictions = model(inputs).argmax(dim=-1)
        predictions, targets = accelerator.gather_for_metrics((predictions, targets))
        correct += (predictions == targets).sum().item()
        seen += targets.shape[0]
    lr = scheduler.get_last_lr()[0]
    accelerator.print(f"epoch {epoch} loss {loss.item():.4f} accuracy {correct}/{seen} lr {lr:.5f}")

accelerator.wait_for_everyone()
accelerator.save(accelerator.unwrap_model(model).state_dict(), sys.argv[1])
