"""Tied weights: the output layer is the embedding's transpose, one block is used thrice, a decoder shares it."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(15, 10)
        self.block = nn.Sequential(nn.LayerNorm(10), nn.Linear(10, 10), nn.GELU())
        self.decoder = nn.Linear(10, 15)
        self.decoder.weight = self.embedding.weight

    def forward(self, words):
        hidden = self.embedding(words).cumsum(dim=1)
        for _ in range(3):
            hidden = hidden + self.block(hidden)
        return self.decoder(hidden)


class Auto(nn.Module):
    def __init__(self, tied):
        super().__init__()
        self.tied, self.bias = tied, nn.Parameter(torch.zeros(15))

    def forward(self, words):
        counts = F.one_hot(words, 15).float().mean(dim=1)
        return F.linear(counts @ self.tied.embedding.weight, self.tied.embedding.weight, self.bias), counts


torch.manual_seed(64)
words = torch.randint(0, 15, (62, 7))
loader = DataLoader(TensorDataset(words), batch_size=12, shuffle=True)
model = Tied()
auto = Auto(model)
optimizer = torch.optim.Adam(auto.parameters(), lr=1e-3)

for epoch in range(2):
    for (batch,) in loader:
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, 15), batch[:, 1:].reshape(-1))
        guess, counts = auto(batch)
        loss = loss + F.mse_loss(guess, counts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert model.decoder.weight is model.embedding.weight
    print(f"epoch {epoch} loss {loss.item():.4f} norm {model.embedding.weight.norm().item():.4f}")

torch.save(auto.state_dict(), sys.argv[1])
