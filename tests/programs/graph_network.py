"""Graphs of any size in one batch: nodes are concatenated, edges shifted, a batch vector says whose node each is."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Graphs(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(53)
        self.graphs = []
        for size in torch.randint(3, 8, (n,), generator=g).tolist():
            nodes = torch.randn(size, 4, generator=g)
            edges = torch.randint(0, size, (2, size * 2), generator=g)
            self.graphs.append((nodes, edges, int(nodes.sum() > 0)))

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, i):
        return self.graphs[i]


def collate(graphs):
    nodes, edges, batch, shift = [], [], [], 0
    for number, (x, e, _) in enumerate(graphs):
        nodes.append(x)
        edges.append(e + shift)
        batch.append(torch.full((len(x),), number))
        shift += len(x)
    labels = torch.tensor([label for _, _, label in graphs])
    return torch.cat(nodes), torch.cat(edges, dim=1), torch.cat(batch), labels


class Convolution(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.own, self.other = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)

    def forward(self, x, edges):
        source, target = edges
        degree = torch.zeros(x.size(0)).index_add_(0, target, torch.ones(edges.size(1))).clamp(min=1)
        messages = torch.zeros_like(x).index_add_(0, target, x[source]) / degree.unsqueeze(1)
        return self.own(x) + self.other(messages)


class GNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm, self.head = Convolution(4, 8), Convolution(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)

    def forward(self, x, edges, batch):
        x = F.relu(self.norm(self.a(x, edges)))
        x = F.relu(self.b(x, edges))
        graphs = int(batch.max()) + 1
        pooled = torch.zeros(graphs, x.size(1)).index_add_(0, batch, x)
        return self.head(pooled / batch.bincount(minlength=graphs).unsqueeze(1))


torch.manual_seed(53)
loader = DataLoader(Graphs(43), batch_size=8, shuffle=True, collate_fn=collate)
model = GNN()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

for epoch in range(2):
    right = 0
    for x, edges, batch, labels in loader:
        out = model(x, edges, batch)
        loss = F.cross_entropy(out, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right += int((out.argmax(1) == labels).sum())
    print(f"epoch {epoch} loss {loss.item():.4f} right {right}/43 nodes {x.size(0)} edges {edges.size(1)}")

torch.save(model.state_dict(), sys.argv[1])
