"""Warnings name the script's lines, once for each line, whoever warns."""

import sys
import warnings

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(9, 4)), batch_size=6)
net = torch.nn.Linear(4, 2)
for (x,) in loader:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(2):
            loss = net(x).sum()
            float(loss)
            warnings.warn("of the script's own", stacklevel=1)
            torch.nn.functional.softmax(net(x))
            torch.nn.functional.softmax(net(x))
    for each in found:
        file = each.filename.rpartition("/")[2]
        print(file, each.lineno, each.category.__name__, str(each.message).splitlines()[0][:40])
torch.save(net.state_dict(), sys.argv[1])
