"""A token-level language model: padding is ignored, logits are flattened to (N*T, V)."""

import math
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY, LENGTH, PAD = 23, 12, 0


class LanguageModel(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width, padding_idx=PAD)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        hidden, _ = self.rnn(self.embedding(tokens))
        return self.head(hidden)


torch.manual_seed(2)
start = torch.randint(1, VOCABULARY, (85, 1))
stride = torch.randint(1, 4, (85, 1))
tokens = (start + stride * torch.arange(LENGTH + 1)) % (VOCABULARY - 1) + 1
lengths = torch.randint(3, LENGTH + 2, (85, 1))
tokens[torch.arange(LENGTH + 1) >= lengths] = PAD

loader = DataLoader(TensorDataset(tokens), batch_size=16, shuffle=True)
model = LanguageModel()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

for epoch in range(3):
    total, count, right = 0.0, 0, 0
    for (batch,) in loader:
        inputs, targets = batch[:, :-1], batch[:, 1:]
        logits = model(inputs)
        loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mask = targets != PAD
        tokens_here = mask.sum().item()
        total += loss.item() * tokens_here
        count += tokens_here
        right += ((logits.argmax(dim=-1) == targets) & mask).sum().item()
    print(f"epoch {epoch} loss {total / count:.4f} perplexity {math.exp(total / count):.3f} right {right}/{count}")

torch.save(model.state_dict(), sys.argv[1])
