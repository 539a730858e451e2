"""DistributedDataParallel by `mp.spawn`: the script starts its processes itself.

python ddp_spawn.py weights.pt
samestep run --devices cpu:2 ddp_spawn.py weights.pt
"""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from task import BATCH, CUDA, datasets, finish, loss_of, network, optimizer_of
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def work(rank: int, world: int) -> None:
    dist.init_process_group("nccl" if CUDA else "gloo", rank=rank, world_size=world)
    device = torch.device("cuda", rank) if CUDA else torch.device("cpu")
    train, test = datasets()
    model = DistributedDataParallel(network().to(device))
    optimizer = optimizer_of(model)
    for x, y in DataLoader(train, batch_size=BATCH // world, sampler=DistributedSampler(train, shuffle=False)):
        optimizer.zero_grad()
        loss_of(model, x.to(device), y.to(device)).backward()
        optimizer.step()
    counts = torch.zeros(2, device=device)
    with torch.no_grad():
        for x, y in DataLoader(test, batch_size=BATCH // world, sampler=DistributedSampler(test, shuffle=False)):
            counts[0] += (model(x.to(device)).argmax(dim=1) == y.to(device)).sum()
            counts[1] += y.size(0)
    dist.all_reduce(counts)
    if rank == 0:
        finish(model.module, *counts.tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29521")
    mp.spawn(work, args=(2,), nprocs=2)
