"""Started by startup.py under torchrun: the same step as startup_single.py, written for DDP by hand."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(16, 32).chunk(ranks)[rank], torch.randint(0, 10, (16,)).chunk(ranks)[rank]
loss = F.cross_entropy(model(x), y)
loss.backward()
optimizer.step()
total = loss.detach().clone()
dist.all_reduce(total)
if rank == 0:
    print("first step", total.item() > 0, flush=True)
dist.destroy_process_group()
