"""A VQ-VAE whose code book follows the batch by moving averages in forward, with the straight-through estimator."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Quantizer(nn.Module):
    def __init__(self, codes=10, width=4, decay=0.9):
        super().__init__()
        embed = torch.randn(width, codes)
        self.register_buffer("embed", embed)
        self.register_buffer("cluster_size", torch.zeros(codes))
        self.register_buffer("embed_avg", embed.clone())
        self.decay = decay

    def forward(self, inputs):
        flat = inputs.reshape(-1, inputs.size(-1))
        distance = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.embed + self.embed.pow(2).sum(0, keepdim=True)
        index = distance.argmin(1)
        one_hot = F.one_hot(index, self.embed.size(1)).type(flat.dtype)
        quantized = F.embedding(index.view(*inputs.shape[:-1]), self.embed.t())
        if self.training:
            self.cluster_size.data.mul_(self.decay).add_(one_hot.sum(0), alpha=1 - self.decay)
            self.embed_avg.data.mul_(self.decay).add_(flat.detach().t() @ one_hot, alpha=1 - self.decay)
            n = self.cluster_size.sum()
            size = (self.cluster_size + 0.1) / (n + self.embed.size(1) * 0.1) * n
            self.embed.data.copy_(self.embed_avg / size.unsqueeze(0))
        difference = (quantized.detach() - inputs).pow(2).mean()
        return inputs + (quantized - inputs).detach(), difference, index


class VQVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Conv2d(1, 4, 2, stride=2), nn.ConvTranspose2d(4, 1, 2, stride=2)
        self.quantize = Quantizer()

    def forward(self, x):
        code, difference, index = self.quantize(self.encode(x).permute(0, 2, 3, 1))
        return self.decode(code.permute(0, 3, 1, 2)), difference.unsqueeze(0), index.unique().numel()


torch.manual_seed(74)
loader = DataLoader(TensorDataset(torch.randn(45, 1, 6, 6)), batch_size=8, shuffle=True)
model = VQVAE()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for epoch in range(2):
    for (x,) in loader:
        out, latent, used = model(x)
        loss = F.mse_loss(out, x) + 0.25 * latent.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(
        f"epoch {epoch} loss {loss.item():.4f} latent {latent.item():.4f} used {used} {model.quantize.embed.norm():.3f}"
    )

torch.save(model.state_dict(), sys.argv[1])
