"""Accelerate: `prepare` everything. The same file is the program for one device and for several.

accelerate launch --num_processes 2 accelerate_ddp.py weights.pt
samestep run --mode distributed --devices cpu:2 accelerate_ddp.py weights.pt     # as Accelerate does it
samestep run --devices cpu:2 accelerate_ddp.py weights.pt                        # with the numbers of one device
"""

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from task import BATCH, CUDA, datasets, finish, loss_of, network, optimizer_of
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=not CUDA, dataloader_config=DataLoaderConfiguration(split_batches=True))
train, test = datasets()
model = network()
model, optimizer, train, test = accelerator.prepare(
    model, optimizer_of(model), DataLoader(train, batch_size=BATCH), DataLoader(test, batch_size=BATCH)
)
for x, y in train:
    optimizer.zero_grad()
    accelerator.backward(loss_of(model, x, y))
    optimizer.step()
right = seen = 0
with torch.no_grad():
    for x, y in test:
        found, wanted = accelerator.gather_for_metrics((model(x).argmax(dim=1), y))
        right += (found == wanted).sum().item()
        seen += wanted.size(0)
if accelerator.is_main_process:
    finish(accelerator.unwrap_model(model), right, seen)
accelerator.end_training()
