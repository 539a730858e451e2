"""A Transformer and an LSTM with dropout on padded sequences, blocks of it checkpointed, some skipped at random."""

import random
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 12)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(12, 3, 24, dropout=0.2, batch_first=True) for _ in range(3)
        )
        self.lstm = nn.LSTM(12, 12, 2, dropout=0.3, batch_first=True)
        self.head = nn.Linear(12, 4)

    def forward(self, tokens):
        padded = tokens == 0
        x = F.dropout(self.embedding(tokens), 0.1, self.training)
        for number, block in enumerate(self.blocks):
            if self.training and random.random() < 0.3:
                continue
            if number == 1:
                x = checkpoint(block, x, None, padded, use_reentrant=False)
            else:
                x = block(x, src_key_padding_mask=padded)
        x, _ = self.lstm(x)
        return self.head(x[:, -1])


torch.manual_seed(72)
random.seed(72)
tokens = torch.randint(1, 20, (75, 7)) * (torch.arange(7) < torch.randint(3, 8, (75, 1)))
labels = torch.randint(0, 4, (75,))
loader = DataLoader(TensorDataset(tokens, labels), batch_size=10, shuffle=True)
model = Encoder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

for epoch in range(2):
    total = 0.0
    for data, target in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / len(loader):.6f} next {torch.rand(1).item():.6f} {random.random():.6f}")

torch.save(model.state_dict(), sys.argv[1])
