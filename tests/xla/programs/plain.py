"""A plain torch_xla script: weights to the first argument; the second is `cpu` or `xla`."""

import sys

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cpu")
if sys.argv[2] == "xla":
    import torch_xla

    device = torch_xla.device()
torch.manual_seed(0)
x = torch.randn(103, 8)
y = x[:, :3].argmax(dim=1)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(8, 24), torch.nn.ReLU(), torch.nn.Linear(24, 3)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(2):
    total = right = 0
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = F.cross_entropy(outputs, targets)
        loss.backward()
        optimizer.step()
        if device.type == "xla":
            torch_xla.sync()
        total += loss.item() * inputs.size(0)
        right += (outputs.argmax(dim=1) == targets).sum().item()
    print(f"epoch {epoch} loss {total / len(x):.5f} right {right}")
torch.save({name: value.cpu() for name, value in model.state_dict().items()}, sys.argv[1])
