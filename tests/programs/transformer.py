"""A small transformer with padding masks that returns a dataclass; the loss is computed outside."""

import sys
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Output:
    logits: torch.Tensor
    pooled: torch.Tensor


class Encoder(nn.Module):
    def __init__(self, vocabulary=19, width=16):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(1, 10, width))
        layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens, padding=None):
        hidden = self.layers(self.embedding(tokens) + self.position, src_key_padding_mask=padding)
        return Output(self.head(hidden), hidden.mean(dim=1))


torch.manual_seed(22)
tokens = torch.randint(1, 19, (69, 10))
padding = torch.arange(10) >= torch.randint(4, 11, (69, 1))
loader = DataLoader(TensorDataset(tokens, padding), batch_size=16, shuffle=True)
model = Encoder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for epoch in range(2):
    for batch, mask in loader:
        output = model(batch, padding=mask)
        targets = batch.masked_fill(mask, -100)
        loss = F.cross_entropy(output.logits.transpose(1, 2), targets) + 1e-2 * output.pooled.pow(2).sum(dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
    per_token = F.cross_entropy(output.logits.permute(0, 2, 1), targets, reduction="none")
    print(f"epoch {epoch} loss {loss.item():.4f} worst token {per_token.max().item():.4f} kept {(~mask).sum().item()}")

torch.save(model.state_dict(), sys.argv[1])
