"""Spectra: complex weights in a Fourier layer, double precision beside single, a loss on phases."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SpectralConv(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(width, width, modes, dtype=torch.cfloat) / width)

    def forward(self, x):
        spectrum = torch.fft.rfft(x)
        out = torch.zeros_like(spectrum)
        out[:, :, : self.modes] = torch.einsum("bix,iox->box", spectrum[:, :, : self.modes], self.weight)
        return torch.fft.irfft(out, n=x.size(-1))


class FNO(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift, self.spectral, self.skip = nn.Conv1d(1, 4, 1), SpectralConv(4, 5), nn.Conv1d(4, 4, 1)
        self.project = nn.Conv1d(4, 1, 1)

    def forward(self, x):
        x = self.lift(x.unsqueeze(1))
        return self.project(torch.tanh(self.spectral(x) + self.skip(x))).squeeze(1)


torch.manual_seed(83)
waves = torch.randn(51, 16).cumsum(dim=1) / 4
loader = DataLoader(TensorDataset(waves, waves.roll(2, dims=1)), batch_size=10, shuffle=True)
model, corrector = FNO(), nn.Sequential(nn.Linear(16, 16), nn.Softplus(), nn.Linear(16, 16)).double()
optimizer = torch.optim.Adam([*model.parameters(), *corrector.parameters()], lr=1e-3)

for epoch in range(2):
    for x, y in loader:
        out = model(x)
        final = out.double() + corrector(out.double())
        relative = (final - y.double()).norm(dim=1) / y.double().norm(dim=1)
        spectrum = torch.fft.rfft(out, norm="ortho")
        loss = relative.mean() + 0.1 * (spectrum - torch.fft.rfft(y, norm="ortho")).abs().pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.6f} {loss.dtype} worst {relative.max().item():.4f}")

torch.save({"model": model.state_dict(), "corrector": corrector.state_dict()}, sys.argv[1])
