"""Gradients looked at and changed: hooks on parameters and on hidden tensors, gradient reversal, noise, a histogram."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.alpha * grad, None


class DANN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.label, self.domain = nn.Linear(6, 10), nn.Linear(10, 2), nn.Linear(10, 2)

    def forward(self, x, alpha):
        features = torch.relu(self.features(x))
        return self.label(features), self.domain(Reverse.apply(features, alpha)), features


torch.manual_seed(82)
x = torch.randn(63, 6)
loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long(), (x[:, 1] > 0.2).long()), batch_size=12, shuffle=True)
model = DANN()
norms = []
model.label.weight.register_hook(lambda grad: norms.append(grad.norm().item()))
model.domain.bias.register_hook(lambda grad: grad.clamp(-0.05, 0.05))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for epoch in range(2):
    for step, (data, label, domain) in enumerate(loader):
        alpha = 2.0 / (1.0 + 2.718281828 ** (-(epoch * len(loader) + step) / 4)) - 1
        out, domains, features = model(data, alpha)
        kept = {}
        features.register_hook(lambda grad: kept.update(grad=grad))
        loss = F.cross_entropy(out, label) + F.cross_entropy(domains, domain)
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            p.grad += 1e-3 * torch.randn(p.shape)
            p.grad.data.clamp_(-1, 1)
        optimizer.step()
    steepest = kept["grad"].abs().sum(dim=1).max().item()
    print(f"epoch {epoch} loss {loss.item():.4f} seen {len(norms)} last {norms[-1]:.4f} steepest {steepest:.4f}")

torch.save(model.state_dict(), sys.argv[1])
