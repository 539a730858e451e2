"""Dropout of every kind: attention, feed-forward, embeddings, features, alpha dropout; none in evaluation."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.dropped = nn.Embedding(15, 8), nn.Dropout(0.2)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.channels, self.alpha = nn.Dropout1d(0.2), nn.AlphaDropout(0.1)
        self.head = nn.Linear(8, 3)

    def forward(self, words):
        hidden = self.layers(self.dropped(self.embedding(words)))
        hidden = self.channels(hidden.transpose(1, 2)).mean(dim=2)
        return self.head(F.dropout(self.alpha(F.selu(hidden)), 0.1, self.training))


torch.manual_seed(84)
words, kinds = torch.randint(0, 15, (50, 6)), torch.randint(0, 3, (50,))
loader = DataLoader(TensorDataset(words, kinds), batch_size=12, shuffle=True)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

for epoch in range(2):
    model.train()
    for batch, target in loader:
        loss = F.cross_entropy(model(batch), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(b).argmax(1) == t).sum().item() for b, t in loader)
    print(f"epoch {epoch} loss {loss.item():.4f} right {right} next {torch.rand(()).item():.4f}")

torch.save(model.state_dict(), sys.argv[1])
