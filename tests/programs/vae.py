"""A variational autoencoder whose noise the script draws; samples are decoded from the prior at the end."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.mu, self.logvar = nn.Linear(36, 20), nn.Linear(20, 4), nn.Linear(20, 4)
        self.fc3, self.fc4 = nn.Linear(4, 20), nn.Linear(20, 36)

    def encode(self, x):
        h = F.relu(self.fc1(x))
        return self.mu(h), self.logvar(h)

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x, noise):
        mu, logvar = self.encode(x.view(-1, 36))
        return self.decode(mu + noise * torch.exp(0.5 * logvar)), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    reconstruction = F.binary_cross_entropy(recon_x, x.view(-1, 36), reduction="sum")
    divergence = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return reconstruction + divergence, divergence


torch.manual_seed(32)
loader = DataLoader(TensorDataset(torch.rand(101, 1, 6, 6)), batch_size=16, shuffle=True)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(3):
    train_loss = 0
    for (data,) in loader:
        optimizer.zero_grad()
        recon, mu, logvar = model(data, torch.randn(len(data), 4))
        loss, divergence = loss_function(recon, data, mu, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
    print(f"epoch {epoch} average loss {train_loss / len(loader.dataset):.4f} KL {divergence.item():.4f}")

with torch.no_grad():
    mu, logvar = model.encode(data.view(-1, 36))
    samples = model.decode(torch.randn(5, 4))
    again = model.decode(mu + torch.randn_like(mu) * logvar.mul(0.5).exp())
print("samples", " ".join(f"{value:.4f}" for value in samples.mean(dim=1).tolist()), f"again {again.std():.4f}")
torch.save(model.state_dict(), sys.argv[1])
