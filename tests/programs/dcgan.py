"""DCGAN: transposed convolutions, batch norm in both networks, labels filled by hand, Adam with beta1 of 0.5."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def weights_init(m):
    if m.__class__.__name__.find("Conv") != -1:
        nn.init.normal_(m.weight, 0.0, 0.1)
    elif m.__class__.__name__.find("BatchNorm") != -1:
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.zeros_(m.bias)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(6, 8, 3, 1, 0, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(True),
            nn.ConvTranspose2d(8, 4, 4, 2, 1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(True),
            nn.ConvTranspose2d(4, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, noise):
        return self.main(noise)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, 4, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(4, 8, 4, 2, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(8, 1, 3, 1, 0, bias=False),
        )

    def forward(self, image):
        return self.main(image).view(-1, 1).squeeze(1)


torch.manual_seed(33)
loader = DataLoader(TensorDataset(torch.rand(53, 1, 12, 12) * 2 - 1), batch_size=16, shuffle=True)
netG, netD = Generator().apply(weights_init), Discriminator().apply(weights_init)
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-5, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-5, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
fixed_noise = torch.randn(7, 6, 1, 1)

for epoch in range(2):
    for i, data in enumerate(loader, 0):
        netD.zero_grad()
        real = data[0]
        batch_size = real.size(0)
        label = torch.full((batch_size,), 1.0)
        output = netD(real)
        errD_real = criterion(output, label)
        errD_real.backward()
        D_x = output.mean().item()

        fake = netG(torch.randn(batch_size, 6, 1, 1))
        label.fill_(0.0)
        output = netD(fake.detach())
        errD_fake = criterion(output, label)
        errD_fake.backward()
        optimizerD.step()

        netG.zero_grad()
        label.fill_(1.0)
        output = netD(fake)
        errG = criterion(output, label)
        errG.backward()
        optimizerG.step()
    print(f"[{epoch}] D {(errD_real + errD_fake).item():.4f} G {errG.item():.4f} D(x) {D_x:.4f} {output.mean():.4f}")
    print(f"fixed {netG(fixed_noise).detach().std().item():.4f}")

torch.save({"g": netG.state_dict(), "d": netD.state_dict()}, sys.argv[1])
