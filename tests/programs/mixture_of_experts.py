"""A mixture of experts: top-2 routing, tokens gathered per expert, a balance loss over the batch, returned and kept."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class MoE(nn.Module):
    def __init__(self, width=8, experts=4):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, 12), nn.GELU(), nn.Linear(12, width)) for _ in range(experts)]
        )

    def forward(self, x):
        tokens = x.reshape(-1, x.size(-1))
        probabilities = self.gate(tokens).softmax(dim=-1)
        weights, chosen = probabilities.topk(2, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            if rows.numel() == 0:
                continue
            out.index_add_(0, rows, expert(tokens[rows]) * weights[rows, place].unsqueeze(-1))
        load = F.one_hot(chosen[:, 0], len(self.experts)).float().mean(dim=0)
        balance = len(self.experts) * (load * probabilities.mean(dim=0)).sum()
        return out.view_as(x), balance


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.moe, self.second, self.head = nn.Linear(5, 8), MoE(), MoE(), nn.Linear(8, 2)
        self.balance = None

    def forward(self, x):
        hidden, a = self.moe(torch.relu(self.first(x)))
        hidden, b = self.second(hidden)
        self.balance = b
        return self.head(hidden.mean(dim=1)), a


torch.manual_seed(52)
x = torch.randn(52, 6, 5)
loader = DataLoader(TensorDataset(x, (x.mean(dim=(1, 2)) > 0).long()), batch_size=10, shuffle=True)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for epoch in range(2):
    for data, target in loader:
        logits, balance = model(data)
        loss = F.cross_entropy(logits, target) + 0.01 * balance + 0.02 * model.balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f} balance {balance.item():.4f} {model.balance.item():.4f}")

torch.save(model.state_dict(), sys.argv[1])
