"""Image translation (pix2pix): the discriminator is frozen for the generator's step, fakes are pooled."""

import itertools
import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ImagePool:
    """Fakes of earlier steps, of which some are shown to the discriminator again."""

    def __init__(self, size):
        self.size, self.images = size, []

    def query(self, images):
        chosen = []
        for image in images:
            image = torch.unsqueeze(image.data, 0)
            if len(self.images) < self.size:
                self.images.append(image)
                chosen.append(image)
            elif random.uniform(0, 1) > 0.5:
                number = random.randint(0, self.size - 1)
                chosen.append(self.images[number].clone())
                self.images[number] = image
            else:
                chosen.append(image)
        return torch.cat(chosen, 0)


def set_requires_grad(nets, requires_grad):
    for net in nets:
        for parameter in net.parameters():
            parameter.requires_grad = requires_grad


torch.manual_seed(35)
random.seed(35)
a = torch.rand(27, 2, 8, 8)
loader = DataLoader(TensorDataset(a, a.flip(1) * 0.5), batch_size=6, shuffle=True)
generator = nn.Sequential(
    nn.Conv2d(2, 6, 3, padding=1, bias=False),
    nn.InstanceNorm2d(6),
    nn.ReLU(True),
    nn.Conv2d(6, 2, 3, padding=1),
    nn.Sigmoid(),
)
discriminator = nn.Sequential(nn.Conv2d(4, 6, 4, 2, 1), nn.LeakyReLU(0.2, True), nn.Conv2d(6, 1, 3, padding=1))
optimizer_g = torch.optim.Adam(itertools.chain(generator.parameters()), lr=1e-4, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=1e-4, betas=(0.5, 0.999))
pool, gan_loss, l1 = ImagePool(10), nn.MSELoss(), nn.L1Loss()

for epoch in range(2):
    for real_a, real_b in loader:
        fake_b = generator(real_a)
        set_requires_grad([discriminator], False)
        optimizer_g.zero_grad()
        judged = discriminator(torch.cat((real_a, fake_b), 1))
        loss_g = gan_loss(judged, torch.tensor(1.0).expand_as(judged)) + l1(fake_b, real_b) * 10
        loss_g.backward()
        optimizer_g.step()

        set_requires_grad([discriminator], True)
        optimizer_d.zero_grad()
        pooled = pool.query(torch.cat((real_a, fake_b), 1))
        judged_fake, judged_real = discriminator(pooled.detach()), discriminator(torch.cat((real_a, real_b), 1))
        loss_d = gan_loss(judged_fake, torch.zeros_like(judged_fake))
        loss_d = (loss_d + gan_loss(judged_real, torch.ones_like(judged_real))) * 0.5
        loss_d.backward(retain_graph=True)
        optimizer_d.step()
    print(f"epoch {epoch} G {loss_g.item():.4f} D {loss_d.item():.4f} pooled {len(pool.images)} {pooled.mean():.4f}")

torch.save({"g": generator.state_dict(), "d": discriminator.state_dict()}, sys.argv[1])
