"""Random numbers of the script: every stream it seeds gives what one process gives, whatever is loaded in between."""

import random
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler, random_split

random.seed(17)
np.random.seed(17)
torch.manual_seed(17)
data = TensorDataset(torch.randn(101, 6), torch.randint(0, 2, (101,)))
train, held_out = random_split(data, [84, 17])
print("split", list(held_out.indices)[:6])

own = torch.Generator().manual_seed(3)
loaders = {
    "shuffled": DataLoader(train, batch_size=16, shuffle=True),
    "own generator": DataLoader(train, batch_size=16, shuffle=True, generator=own),
    "replacement": DataLoader(train, batch_size=16, sampler=RandomSampler(train, replacement=True, num_samples=37)),
    "weighted": DataLoader(train, batch_size=16, sampler=WeightedRandomSampler(torch.arange(84.0) + 1, 53)),
}
model = nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
unseeded = np.random.default_rng()  # nobody knows its draws, but all devices must act on the same ones

for name, loader in loaders.items():
    rows = 0
    for xb, yb in loader:
        xb = xb + 0.1 * torch.randn_like(xb)
        if random.random() < 0.3:
            xb = xb.flip(0) * 1.0
            yb = yb.flip(0)
        noise = torch.from_numpy(np.random.normal(0, 0.05, size=tuple(xb.shape))).float()
        loss = F.cross_entropy(model(xb + noise), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rows += len(xb)
        if unseeded.random() < 0.5:
            assert loss.item() > 0
    draws = (random.random(), np.random.rand(), torch.rand(()).item(), torch.randint(0, 1000, ()).item())
    print(f"{name}: {rows} rows, loss {loss.item():.4f}, next draws", " ".join(f"{draw:.6g}" for draw in draws))

state = torch.get_rng_state()
first = torch.randperm(5).tolist()
torch.set_rng_state(state)
print("again", first == torch.randperm(5).tolist(), first)
torch.save(model.state_dict(), sys.argv[1])
