"""DistributedDataParallel, as its tutorial says: a process per device, each with a batch of 8.

torchrun --nproc-per-node 2 ddp.py weights.pt
samestep run --devices cpu:2 ddp.py weights.pt
"""

import os

import torch
import torch.distributed as dist
from task import BATCH, CUDA, datasets, finish, loss_of, network, optimizer_of
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    dist.init_process_group("nccl" if CUDA else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if CUDA else torch.device("cpu")
    train, test = datasets()
    share = BATCH // dist.get_world_size()
    model = DistributedDataParallel(network().to(device))
    optimizer = optimizer_of(model)
    for x, y in DataLoader(train, batch_size=share, sampler=DistributedSampler(train, shuffle=False)):
        optimizer.zero_grad()
        loss_of(model, x.to(device), y.to(device)).backward()
        optimizer.step()
    counts = torch.zeros(2, device=device)
    with torch.no_grad():
        for x, y in DataLoader(test, batch_size=share, sampler=DistributedSampler(test, shuffle=False)):
            counts[0] += (model(x.to(device)).argmax(dim=1) == y.to(device)).sum()
            counts[1] += y.size(0)
    dist.all_reduce(counts)
    if dist.get_rank() == 0:
        finish(model.module, *counts.tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
