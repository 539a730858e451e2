"""A variational autoencoder with discrete and continuous latents and a diffusion model: both draw in their forward."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(16, 4 + 4 + 6), nn.Linear(4 + 6, 16)

    def forward(self, x):
        mean, scale, logits = self.encoder(x).split([4, 4, 6], 1)
        z = mean + torch.randn_like(scale) * torch.exp(0.5 * scale)
        code = F.gumbel_softmax(logits, tau=0.7)
        other = torch.multinomial(logits.softmax(1).detach(), 1)
        return self.decoder(torch.cat([z, code], 1)) + 0.01 * other, mean, scale


class Diffusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("alpha", torch.linspace(0.99, 0.1, 50))
        self.net = nn.Sequential(nn.Linear(17, 32), nn.SiLU(), nn.Dropout(0.1), nn.Linear(32, 16))

    def forward(self, x):
        t = torch.randint(0, 50, (x.shape[0],))
        noise = torch.randn(x.shape)
        alpha = self.alpha[t][:, None]
        noisy = alpha.sqrt() * x + (1 - alpha).sqrt() * noise
        return self.net(torch.cat([noisy, t[:, None] / 50], 1)), noise


torch.manual_seed(73)
loader = DataLoader(TensorDataset(torch.rand(77, 16)), batch_size=14, shuffle=True)
models = nn.ModuleList([VAE(), Diffusion()])
optimizer = torch.optim.Adam(models.parameters(), lr=2e-3)

for epoch in range(3):
    for (x,) in loader:
        reconstruction, mean, scale = models[0](x)
        divergence = -0.5 * (1 + scale - mean.pow(2) - scale.exp()).sum()
        predicted, noise = models[1](x)
        loss = F.mse_loss(reconstruction, x) + 0.001 * divergence + F.mse_loss(predicted, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.6f} next {torch.randn(1).item():.6f}")

torch.save(models.state_dict(), sys.argv[1])
