"""A torch_xla script as documented: xmp.spawn, MpDeviceLoader, xm.optimizer_step. On the CPU: the same steps."""

import sys

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

XLA = sys.argv[2] == "xla"
if XLA:
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.distributed.parallel_loader as pl
    import torch_xla.distributed.xla_multiprocessing as xmp
    import torch_xla.runtime as xr


def train(index):
    torch.manual_seed(0)
    x = torch.randn(70, 8)
    y = x[:, :3].argmax(dim=1)
    loader = DataLoader(TensorDataset(x, y), batch_size=16, drop_last=True)
    device = torch_xla.device() if XLA else torch.device("cpu")
    model = torch.nn.Sequential(torch.nn.Linear(8, 24), torch.nn.BatchNorm1d(24), torch.nn.Linear(24, 3)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for inputs, targets in pl.MpDeviceLoader(loader, device) if XLA else loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        xm.optimizer_step(optimizer) if XLA else optimizer.step()
        print(f"loss {loss.item():.5f}")
    if XLA:
        print("world", xr.world_size(), "devices", xr.global_runtime_device_count(), file=sys.stderr)
    torch.save({name: value.cpu() for name, value in model.state_dict().items()}, sys.argv[1])


if __name__ == "__main__":
    xmp.spawn(train, args=()) if XLA else train(0)
