"""A denoising convolutional autoencoder: codes of the whole data set, k nearest neighbours, anomalies by percentile."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(72)
images = torch.rand(62, 1, 8, 8).round()
loader = DataLoader(TensorDataset(images, torch.arange(62)), batch_size=12, shuffle=True)
encoder = nn.Sequential(nn.Conv2d(1, 6, 3, 2, 1), nn.GELU(), nn.Flatten(), nn.Linear(96, 5))
decoder = nn.Sequential(
    nn.Linear(5, 96), nn.Unflatten(1, (6, 4, 4)), nn.GELU(), nn.ConvTranspose2d(6, 1, 2, stride=2), nn.Sigmoid()
)
optimizer = torch.optim.NAdam([{"params": encoder.parameters()}, {"params": decoder.parameters(), "lr": 2e-3}], lr=1e-3)
criterion = nn.BCELoss(reduction="none")

for epoch in range(2):
    worst = {}
    for clean, index in loader:
        noisy = (clean + 0.3 * torch.randn(clean.shape)).clamp(0.0, 1.0)
        output = decoder(encoder(noisy))
        per_image = criterion(output, clean).mean(dim=(1, 2, 3))
        loss = per_image.mean() + 1e-3 * encoder[3].weight.abs().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for i, value in zip(index.tolist(), per_image.tolist()):
            worst[i] = value
    limit = torch.quantile(torch.tensor(list(worst.values())), 0.95)
    print(f"epoch {epoch} loss {loss.item():.4f} seen {len(worst)} limit {limit.item():.4f}")

with torch.no_grad():
    codes = torch.zeros(62, 5)
    for clean, index in loader:
        codes[index] = encoder(clean)
distances = torch.cdist(codes, codes).fill_diagonal_(float("inf"))
print("nearest", distances.argmin(dim=1)[:8].tolist(), f"spread {codes.std(dim=0).mean().item():.4f}")
torch.save({"encoder": encoder.state_dict(), "decoder": decoder.state_dict(), "codes": codes}, sys.argv[1])
