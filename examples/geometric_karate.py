"""PyTorch Geometric on Zachary's karate club, which comes with it: a graph network that learns who joins whom.

An ordinary single-process program:    python examples/geometric_karate.py [weights.pt]
The club is one graph, which no batch divides: under Samestep every device computes all of it.
"""

import sys

import torch
import torch.nn.functional as F
from torch_geometric import seed_everything
from torch_geometric.datasets import KarateClub
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv

seed_everything(0)
dataset = KarateClub()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GCNConv(dataset.num_features, 16), GCNConv(16, dataset.num_classes)

    def forward(self, data):
        return self.second(self.first(data.x, data.edge_index).relu(), data.edge_index)


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for epoch in range(1, 31):
    for data in DataLoader(dataset, batch_size=1):
        logits = model(data)
        loss = F.cross_entropy(logits[data.train_mask], data.y[data.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 10 == 0:
        right = (logits.argmax(dim=1) == data.y).sum().item()
        print(f"epoch {epoch} loss {loss.item():.4f} right {right} of {data.num_nodes}")
torch.save(model.state_dict(), sys.argv[1] if len(sys.argv) > 1 else "geometric_karate.pt")
