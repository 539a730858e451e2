"""What a training script leaves behind: directories, logs, TensorBoard events, checkpoints, a copy of the best."""

import csv
import json
import os
import shutil
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

if os.path.exists("run"):
    raise SystemExit("run exists already")
os.makedirs("run/checkpoints")

torch.manual_seed(16)
x, y = torch.randn(85, 6), torch.randint(0, 2, (85,))
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
events = SummaryWriter("run/events")
best, history = float("inf"), []

with open("run/log.csv", "w", newline="") as file:
    log = csv.writer(file)
    log.writerow(["epoch", "loss"])
    for epoch in range(4):
        if epoch == 2:  # as after an interruption
            state = torch.load("run/checkpoints/last.pt")
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            print("resumed from epoch", state["epoch"], sorted(os.listdir("run/checkpoints")))
        total = 0.0
        for xb, yb in loader:
            loss = F.cross_entropy(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(xb)
        total /= len(x)
        events.add_scalar("loss", total, epoch)
        events.add_scalar("last batch", loss, epoch)
        events.add_histogram("first layer", model[0].weight, epoch)
        log.writerow([epoch, f"{total:.4f}"])
        history.append(round(total, 3))
        state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, f"run/checkpoints/epoch{epoch}.pt")
        torch.save(state, "run/checkpoints/last.pt")
        if total < best:
            best = total
            shutil.copyfile("run/checkpoints/last.pt", "run/best.pt")
        if os.path.exists(f"run/checkpoints/epoch{epoch - 2}.pt"):
            os.remove(f"run/checkpoints/epoch{epoch - 2}.pt")
        print(f"epoch {epoch} loss {total:.4f}", file=sys.stdout)
events.close()
with open(os.path.join("run", "history.json"), "w") as file:
    json.dump({"history": history, "epochs": len(history)}, file)
lines = len(open("run/log.csv").readlines())
print("left", sorted(os.listdir("run/checkpoints")), os.path.isfile("run/best.pt"), "lines", lines)

torch.save(torch.load("run/best.pt")["model"], sys.argv[1])
