"""WGAN with gradient penalty: create_graph through the critic on interpolated images, five critic steps per step."""

import sys

import torch
from torch import autograd, nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(34)
loader = DataLoader(TensorDataset(torch.randn(75, 6) * torch.linspace(0.5, 2, 6)), batch_size=16, shuffle=True)
generator = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 6))
critic = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.LeakyReLU(0.2), nn.Linear(16, 1, bias=False))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.0, 0.9))
optimizer_c = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))


def gradient_penalty(real, fake):
    alpha = torch.rand(real.size(0), 1)
    alpha = alpha.expand(real.size())
    interpolates = autograd.Variable(alpha * real + (1 - alpha) * fake, requires_grad=True)
    scores = critic(interpolates)
    gradients = autograd.grad(
        outputs=scores,
        inputs=interpolates,
        grad_outputs=torch.ones(scores.size()),
        create_graph=True,
        retain_graph=True,
        only_inputs=True,
    )[0]
    gradients = gradients.view(gradients.size(0), -1)
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean() * 10


step = 0
for epoch in range(3):
    for (real,) in loader:
        optimizer_c.zero_grad()
        with torch.no_grad():
            fake = generator(torch.randn(real.size(0), 3))
        penalty = gradient_penalty(real.data, fake.data)
        loss_c = critic(fake).mean() - critic(real).mean() + penalty
        loss_c.backward()
        optimizer_c.step()
        step += 1
        if step % 3 == 0:
            optimizer_g.zero_grad()
            loss_g = -critic(generator(torch.randn(real.size(0), 3))).mean()
            loss_g.backward()
            optimizer_g.step()
    print(f"epoch {epoch} critic {loss_c.item():.4f} penalty {penalty.item():.4f} generator {loss_g.item():.4f}")

torch.save({"g": generator.state_dict(), "c": critic.state_dict()}, sys.argv[1])
