"""Full-batch logistic regression by LBFGS with a strong Wolfe line search, then minibatches with a closure."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(58)
x = torch.randn(50, 5, dtype=torch.float64)
y = (x @ torch.tensor([1.0, -2.0, 0.5, 0.0, 1.5], dtype=torch.float64) + 0.3 * torch.randn(50) > 0).double()
model = nn.Linear(5, 1).double()
optimizer = torch.optim.LBFGS(model.parameters(), lr=1, max_iter=5, line_search_fn="strong_wolfe")
calls = 0

for rows, labels in DataLoader(TensorDataset(x, y), batch_size=len(x)):

    def closure():
        global calls
        calls += 1
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(rows).squeeze(1), labels) + 1e-2 * model.weight.pow(2).sum()
        loss.backward()
        return loss

    for step in range(3):
        value = optimizer.step(closure)
        print(f"step {step} loss {value.item():.8f} calls {calls} gradient {model.weight.grad.norm().item():.3e}")

small = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)).double()
optimizer = torch.optim.LBFGS(small.parameters(), lr=0.05, max_iter=3, history_size=5)
for rows, labels in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True):

    def closure(backward=True):
        optimizer.zero_grad()
        loss = ((small(rows).squeeze(1).sigmoid() - labels) ** 2).mean()
        if loss.requires_grad and backward:
            loss.backward()
        return loss

    optimizer.step(closure)
    print(f"rows {len(rows)} loss {closure(False).item():.8f}")

torch.save({"linear": model.state_dict(), "small": small.state_dict()}, sys.argv[1])
