"""PyTorch Geometric: Zachary's karate club as nodes, then a classification of many graphs in mini-batches."""

import sys

import torch
import torch.nn.functional as F
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.datasets import KarateClub
from torch_geometric.loader import DataLoader
from torch_geometric.nn import MLP, BatchNorm, GCNConv, GINConv, global_add_pool

seed_everything(0)
club = KarateClub()[0]


class Gcn(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GCNConv(club.num_features, 16), GCNConv(16, 4)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


nodes = Gcn()
optimizer = torch.optim.Adam(nodes.parameters(), lr=0.01)
for epoch in range(10):
    out = nodes(club.x, club.edge_index)
    loss = F.cross_entropy(out[club.train_mask], club.y[club.train_mask])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"club loss {loss:.4f} right {(out.argmax(dim=1) == club.y).sum().item()} of {club.num_nodes}")


def graph(i):
    generator = torch.Generator().manual_seed(i)
    n = int(torch.randint(5, 12, (1,), generator=generator))
    edges = torch.randint(0, n, (2, 3 * n), generator=generator)
    x = torch.randn(n, 4, generator=generator)
    return Data(x=x, edge_index=edges, y=(x[:, 0].mean() > 0).long())


class Gin(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm = GINConv(MLP([4, 16, 16], norm=None)), BatchNorm(16)
        self.conv2 = GINConv(MLP([16, 16, 16], norm=None))
        self.head = MLP([16, 16, 2], norm=None)

    def forward(self, x, edge_index, batch):
        x = self.norm(self.conv1(x, edge_index)).relu()
        return self.head(global_add_pool(self.conv2(x, edge_index).relu(), batch))


train = DataLoader([graph(i) for i in range(101)], batch_size=16, shuffle=True)
test = DataLoader([graph(i) for i in range(101, 150)], batch_size=16)
model = Gin()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
best = 0.0
for epoch in range(3):
    model.train()
    total = 0.0
    for data in train:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.x, data.edge_index, data.batch), data.y)
        loss.backward()
        optimizer.step()
        total += loss.item() * data.num_graphs
    model.eval()
    with torch.no_grad():
        right = sum((model(d.x, d.edge_index, d.batch).argmax(dim=1) == d.y).sum().item() for d in test)
    print(
        f"epoch {epoch} loss {total / len(train.dataset):.4f} right {right}/{len(test.dataset)} nodes {data.num_nodes}"
    )
    if right > best:
        best = right
        torch.save(model.state_dict(), "best.pt")
torch.save({"nodes": nodes.state_dict(), "graphs": model.state_dict()}, sys.argv[1])
