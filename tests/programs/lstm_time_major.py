"""A time-major LSTM language model with truncated backpropagation: hidden states travel from batch to batch."""

import math
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, 1)
        self.decoder = nn.Linear(nhid, ntoken)
        self.nhid, self.ntoken = nhid, ntoken

    def forward(self, inputs, hidden):
        output, hidden = self.rnn(self.encoder(inputs), hidden)
        return self.decoder(output).view(-1, self.ntoken), hidden

    def init_hidden(self, rows):
        weight = next(self.parameters())
        return weight.new_zeros(1, rows, self.nhid), weight.new_zeros(1, rows, self.nhid)


def repackage_hidden(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage_hidden(v) for v in h)


torch.manual_seed(37)
corpus = torch.randint(0, 11, (58, 13)).cumsum(1) % 11
loader = DataLoader(TensorDataset(corpus), batch_size=13)
model = RNNModel(11, 8, 10)
criterion = nn.CrossEntropyLoss()

for epoch in range(2):
    total = 0.0
    for (rows,) in loader:
        data = rows.t().contiguous()
        hidden = model.init_hidden(data.size(1))
        for start in range(0, data.size(0) - 1, 4):
            inputs, targets = data[start : start + 4], data[start + 1 : start + 5].view(-1)
            hidden = repackage_hidden(hidden)
            model.zero_grad()
            output, hidden = model(inputs, hidden)
            loss = criterion(output, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-2.0)
            total += loss.item()
    print(f"epoch {epoch} loss {total / 15:.4f} ppl {math.exp(total / 15):.3f} hidden {hidden[1].abs().mean():.4f}")

torch.save(model.state_dict(), sys.argv[1])
