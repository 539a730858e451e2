"""Triplets from the data set, one encoder on the three stacked, and the margin of nn.TripletMarginLoss."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Triplets(Dataset):
    def __init__(self, n):
        generator = torch.Generator().manual_seed(42)
        self.kinds = torch.randint(0, 4, (n,), generator=generator)
        self.x = torch.randn(n, 12, generator=generator) + self.kinds.unsqueeze(1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        same = (self.kinds == self.kinds[i]).nonzero().flatten()
        other = (self.kinds != self.kinds[i]).nonzero().flatten()
        return {"anchor": self.x[i], "positive": self.x[same[i % len(same)]], "negative": self.x[other[i % len(other)]]}


torch.manual_seed(42)
loader = DataLoader(Triplets(71), batch_size=16, shuffle=True)
encoder = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 6))
criterion = nn.TripletMarginLoss(margin=1.0, p=2)
cosine = nn.TripletMarginWithDistanceLoss(distance_function=lambda a, b: 1 - torch.cosine_similarity(a, b))
optimizer = torch.optim.Adagrad(encoder.parameters(), lr=1e-2)

for epoch in range(3):
    violated = 0
    for batch in loader:
        anchor, positive, negative = encoder(torch.cat([batch[k] for k in ("anchor", "positive", "negative")])).chunk(3)
        loss = criterion(anchor, positive, negative) + 0.1 * cosine(anchor, positive, negative)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        violated += int(((anchor - positive).norm(dim=1) > (anchor - negative).norm(dim=1)).sum())
    print(f"epoch {epoch} loss {loss.item():.4f} violated {violated}")

torch.save(encoder.state_dict(), sys.argv[1])
