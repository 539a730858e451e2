"""Forecasting by causal dilated convolutions: windows of one series, errors in NumPy, a plateau schedule."""

import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import DataLoader, Dataset, random_split


class Windows(Dataset):
    def __init__(self, series, length, horizon):
        self.series, self.length, self.horizon = series, length, horizon

    def __len__(self):
        return len(self.series) - self.length - self.horizon + 1

    def __getitem__(self, i):
        window = self.series[i : i + self.length + self.horizon]
        return window[: self.length].T.copy(), window[self.length :, 0].copy()


class TCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([weight_norm(nn.Conv1d(2 if d == 1 else 6, 6, 2, dilation=d)) for d in (1, 2, 4)])
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        for layer in self.layers:
            y = torch.relu(layer(F.pad(x, (layer.dilation[0], 0))))
            x = y if x.size(1) != y.size(1) else x + y
        return self.out(x[:, :, -1])


torch.manual_seed(71)
time = np.arange(110, dtype=np.float32)
noise = np.random.RandomState(71).randn(110).astype(np.float32)
series = np.stack([np.sin(time / 5) + 0.1 * noise, np.cos(time / 9)], axis=1).astype(np.float32)
train, validate = random_split(Windows(series, 12, 3), [70, 26], generator=torch.Generator().manual_seed(1))
loader, validation = DataLoader(train, batch_size=16, shuffle=True), DataLoader(validate, batch_size=8)
model = TCN()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)

for epoch in range(3):
    for x, y in loader:
        loss = F.huber_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    predictions, truths = [], []
    with torch.no_grad():
        for x, y in validation:
            predictions.append(model(x).numpy())
            truths.append(y.numpy())
    errors = np.concatenate(predictions) - np.concatenate(truths)
    mae = np.abs(errors).mean(axis=0)
    scheduler.step(mae.mean())
    print(f"epoch {epoch} loss {loss.item():.4f} MAE {np.array2string(mae, precision=3)} lr {scheduler.get_last_lr()}")

torch.save(model.state_dict(), sys.argv[1])
