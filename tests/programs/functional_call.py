"""torch.func: functional_call with weights of its own, gradients per sample by vmap, an ensemble of stacked weights."""

import copy
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(69)
x = torch.randn(52, 5)
y = (x.sum(1) > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=10, shuffle=True)
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
parameters = {k: v.detach().clone().requires_grad_() for k, v in model.named_parameters()}
optimizer = torch.optim.SGD(parameters.values(), lr=0.1)


def loss_of_row(weights, row, label):
    return F.cross_entropy(functional_call(model, weights, (row.unsqueeze(0),)), label.unsqueeze(0))


for epoch in range(2):
    for data, target in loader:
        output = functional_call(model, parameters, (data,))
        loss = F.cross_entropy(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    detached = {k: v.detach() for k, v in parameters.items()}
    rows = vmap(grad(loss_of_row), in_dims=(None, 0, 0))(detached, data, target)
    norms = torch.cat([g.flatten(1) for g in rows.values()], dim=1).norm(dim=1)
    print(f"epoch {epoch} loss {loss.item():.4f} rows {len(norms)} largest gradient {norms.max().item():.4f}")

models = [copy.deepcopy(model) for _ in range(3)]
for number, m in enumerate(models):
    m[0].weight.data.mul_(1 + 0.1 * number)
stacked, buffers = stack_module_state(models)
base = copy.deepcopy(models[0]).to("meta")
for data, target in loader:
    out = vmap(lambda p, b, v: functional_call(base, (p, b), (v,)), in_dims=(0, 0, None))(stacked, buffers, data)
    loss = sum(F.cross_entropy(o, target) for o in out)
    slopes = torch.autograd.grad(loss, list(stacked.values()))
    with torch.no_grad():
        for p, s in zip(stacked.values(), slopes):
            p -= 0.1 * s
print(f"ensemble {loss.item():.4f} {tuple(out.shape)}")

torch.save({"own": {k: v.detach() for k, v in parameters.items()}, "ensemble": dict(stacked)}, sys.argv[1])
