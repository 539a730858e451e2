"""Two models and two optimizers: a small GAN. The noise is the script's own, the batch size comes from the data."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
real_rows = torch.randn(117, 2) @ torch.tensor([[1.0, 0.5], [0.0, 0.3]]) + 2
loader = DataLoader(TensorDataset(real_rows), batch_size=16, shuffle=True)

generator = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
optimizer_g = torch.optim.SGD(generator.parameters(), lr=0.05)
optimizer_d = torch.optim.SGD(discriminator.parameters(), lr=0.05)
criterion = nn.BCEWithLogitsLoss()

for epoch in range(3):
    for (real,) in loader:
        ones, zeros = torch.ones(real.size(0), 1), torch.zeros(real.size(0), 1)
        fake = generator(torch.randn(real.size(0), 4))

        optimizer_d.zero_grad()
        loss_d = criterion(discriminator(real), ones) + criterion(discriminator(fake.detach()), zeros)
        loss_d.backward()
        optimizer_d.step()

        optimizer_g.zero_grad()
        loss_g = criterion(discriminator(fake), ones)
        loss_g.backward()
        optimizer_g.step()
    score = torch.sigmoid(discriminator(real)).mean().item()
    print(f"epoch {epoch} D {loss_d.item():.4f} G {loss_g.item():.4f} D(x) {score:.4f} mean {fake.mean().item():.4f}")

torch.save({"g": generator.state_dict(), "d": discriminator.state_dict()}, sys.argv[1])
