"""Lightning Fabric: a loop of one's own, with clipping, accumulation, a logger, save and load."""

import sys

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric, seed_everything
from lightning.fabric.loggers import CSVLogger, TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

seed_everything(0)
loggers = [CSVLogger("logs", name="csv"), TensorBoardLogger("logs", name="board")]
fabric = Fabric(accelerator="cpu", devices=1, precision="32-true", loggers=loggers)
fabric.launch()
fabric.print("rank", fabric.global_rank, "of", fabric.world_size)

x = torch.randn(230, 8)
y = x[:, :3].argmax(dim=1)
train = DataLoader(TensorDataset(x[:133], y[:133]), batch_size=16, shuffle=True)
test = DataLoader(TensorDataset(x[133:], y[133:]), batch_size=16)


def build():
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return fabric.setup(model, optimizer)


model, optimizer = build()
train, test = fabric.setup_dataloaders(train, test)
state = {"model": model, "optimizer": optimizer, "step": 0}


def run(epochs):
    accuracy = MulticlassAccuracy(3).to(fabric.device)
    for epoch in epochs:
        model.train()
        for i, (inputs, targets) in enumerate(train):
            accumulating = i % 2 == 0 and i + 1 < len(train)
            with fabric.no_backward_sync(model, enabled=accumulating):
                loss = F.cross_entropy(model(inputs), targets)
                fabric.backward(loss)
            if not accumulating:
                fabric.clip_gradients(model, optimizer, max_norm=0.7)
                optimizer.step()
                optimizer.zero_grad()
                state["step"] += 1
            fabric.log_dict({"loss": loss, "rows": len(inputs)}, step=epoch * len(train) + i)
        model.eval()
        losses = []
        with torch.no_grad():
            for inputs, targets in test:
                logits = model(inputs)
                accuracy(logits, targets)
                losses.append(F.cross_entropy(logits, targets))
        mean = fabric.all_reduce(torch.stack(losses).mean(), reduce_op="mean")
        fabric.log("accuracy", accuracy.compute(), step=epoch)
        fabric.print(f"epoch {epoch} step {state['step']} test loss {mean:.4f} accuracy {accuracy.compute():.4f}")
        accuracy.reset()


run(range(2))
fabric.save("fabric.ckpt", state)
model, optimizer = build()
state.update(model=model, optimizer=optimizer)
rest = fabric.load("fabric.ckpt", state)
fabric.print("resumed at step", state["step"], "left over", sorted(rest))
run(range(2, 4))
fabric.barrier()
if fabric.is_global_zero:
    torch.save(model.state_dict(), sys.argv[1])
