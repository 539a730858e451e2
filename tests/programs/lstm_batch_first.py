"""Sentiment by a bidirectional LSTM, batch first: last hidden states, initial states made from the batch size."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Sentiment(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(21, 8)
        self.lstm = nn.LSTM(8, 6, num_layers=2, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(12, 1)

    def init_hidden(self, batch_size):
        weight = next(self.parameters()).data
        return weight.new(4, batch_size, 6).zero_(), weight.new(4, batch_size, 6).zero_()

    def forward(self, x):
        hidden = self.init_hidden(x.size(0))
        out, (h, _) = self.lstm(self.embedding(x), hidden)
        return torch.sigmoid(self.fc(torch.cat((h[-2], h[-1]), dim=1))).squeeze(), out


torch.manual_seed(36)
words = torch.randint(0, 21, (85, 9))
labels = ((words > 10).sum(1) > 4).float()
loader = DataLoader(TensorDataset(words, labels), batch_size=12, shuffle=True)
model = Sentiment()
criterion = nn.BCELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(2):
    correct, losses = 0, []
    for inputs, targets in loader:
        model.zero_grad()
        output, states = model(inputs)
        output = output.view(-1)
        loss = criterion(output, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5)
        optimizer.step()
        losses.append(loss.item())
        correct += (torch.round(output) == targets).sum().item()
    print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f} correct {correct} states {tuple(states.shape)}")

torch.save(model.state_dict(), sys.argv[1])
