"""A VAE that draws its noise inside forward, a Gumbel softmax, and samples from a distribution of torch's."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.utils.data import DataLoader, TensorDataset


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.kind, self.decoder = nn.Linear(10, 12), nn.Linear(10, 4), nn.Linear(10, 10)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def forward(self, x):
        mu, logvar = self.encoder(x).chunk(2, dim=1)
        kind = F.gumbel_softmax(self.kind(x), tau=0.7)
        posterior = Normal(mu[:, :3], torch.exp(0.5 * logvar[:, :3]))
        z = torch.cat([posterior.rsample(), self.reparameterize(mu[:, 3:], logvar[:, 3:]), kind], dim=1)
        prior = Normal(torch.zeros_like(mu[:, :3]), torch.ones_like(mu[:, :3]))
        return self.decoder(z), mu, logvar, kl_divergence(posterior, prior).sum(dim=1)


torch.manual_seed(85)
loader = DataLoader(TensorDataset(torch.randn(61, 10)), batch_size=12, shuffle=True)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(3):
    total = 0.0
    for (x,) in loader:
        out, mu, logvar, divergence = model(x)
        other = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp())[:, 3:].sum(dim=1)
        loss = F.mse_loss(out, x, reduction="sum") / len(x) + (divergence + other).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
    print(f"epoch {epoch} loss {total / 61:.4f} divergence {divergence.mean().item():.5f}")

torch.save(model.state_dict(), sys.argv[1])
