"""Data sets without a length, and loaders without a batch size."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(14)
        for _ in range(85):
            x = torch.randn(7, generator=generator)
            yield x, x[:3].argmax()


class ReadyBatches(Dataset):
    """Every item is a whole batch already, of 16, 16 and 5 rows."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        x = torch.randn((16, 16, 5)[index], 7, generator=generator)
        return x, x[:, :3].argmax(dim=1)


torch.manual_seed(14)
model = nn.Sequential(nn.Linear(7, 24), nn.ReLU(), nn.Linear(24, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

for name, loader in (
    ("stream", DataLoader(Stream(), batch_size=16)),
    ("drop last", DataLoader(Stream(), batch_size=16, drop_last=True)),
    ("ready", DataLoader(ReadyBatches(), batch_size=None)),
):
    rows, total = 0, 0.0
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rows += len(x)
        total += loss.item() * len(x)
    print(f"{name}: {rows} rows, loss {total / rows:.4f}, last batch {tuple(x.shape)}")

torch.save(model.state_dict(), sys.argv[1])
