"""Batches of a tensor class of the script's keep what they carry; tensors take the class of others, as fastai does."""

import sys

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Tagged(torch.Tensor):
    """A tensor that knows which samples it was made of."""


def collate(samples):
    x = torch.stack([x for x, _, _ in samples]).as_subclass(Tagged)
    x.tag = [int(i) for _, _, i in samples]
    return x, torch.stack([y for _, y, _ in samples])


torch.manual_seed(0)
x = torch.randn(37, 6)
y = x[:, :3].argmax(dim=1)
loader = DataLoader(TensorDataset(x, y, torch.arange(37)), batch_size=8, shuffle=True, collate_fn=collate)
net = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    for inputs, targets in loader:
        print(type(inputs).__name__, inputs.tag)
        logits = net(inputs.as_subclass(torch.Tensor))
        loss = F.cross_entropy(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        parts = torch.cat([logits.detach(), logits.detach()]).as_subclass(type(logits))
        ones = torch.ones(3).as_subclass(type(targets))
        kept = targets.as_subclass(torch.Tensor).as_subclass(Tagged)
        print(f"loss {loss.item():.4f} {parts.shape[0]} {ones.sum().item():.0f}")
        print(type(kept).__name__, kept.sum().item())
torch.save(net.state_dict(), sys.argv[1])
