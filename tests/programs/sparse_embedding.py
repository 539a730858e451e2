"""Matrix factorisation with sparse embedding gradients, SparseAdam beside Adam, negatives drawn by the script."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Recommender(nn.Module):
    def __init__(self, users=20, items=30, width=6):
        super().__init__()
        self.users, self.items = nn.Embedding(users, width, sparse=True), nn.Embedding(items, width, sparse=True)
        self.history = nn.EmbeddingBag(items, width, mode="mean", sparse=True)
        self.mlp = nn.Linear(width, 1)

    def forward(self, user, item, seen):
        return self.mlp((self.users(user) + self.history(seen)) * self.items(item)).squeeze(1)


torch.manual_seed(65)
user, item = torch.randint(0, 20, (93,)), torch.randint(0, 30, (93,))
seen = torch.randint(0, 30, (93, 4))
loader = DataLoader(TensorDataset(user, item, seen), batch_size=16, shuffle=True)
model = Recommender()
sparse = [p for n, p in model.named_parameters() if "mlp" not in n]
optimizers = [torch.optim.SparseAdam(sparse, lr=5e-3), torch.optim.Adam(model.mlp.parameters(), lr=5e-3)]

for epoch in range(3):
    ranked = 0
    for u, i, s in loader:
        negative = torch.randint(0, 30, (len(u),))
        good, bad = model(u, i, s), model(u, negative, s)
        loss = -F.logsigmoid(good - bad).mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        ranked += (good > bad).sum().item()
    print(f"epoch {epoch} loss {loss.item():.4f} ranked {ranked} sparse {model.users.weight.grad.is_sparse}")

torch.save(model.state_dict(), sys.argv[1])
