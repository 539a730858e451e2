"""A siamese network: one encoder called on both images of a pair, contrastive loss, a threshold at the end."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self, n):
        generator = torch.Generator().manual_seed(41)
        self.images = torch.randn(n, 1, 8, 8, generator=generator)
        self.kinds = torch.randint(0, 3, (n,), generator=generator)
        self.images += self.kinds.view(-1, 1, 1, 1) * 0.5

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        j = (i * 7 + 3) % len(self)
        return self.images[i], self.images[j], torch.tensor([float(self.kinds[i] != self.kinds[j])])


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.cnn = nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.BatchNorm2d(4))
        self.fc = nn.Sequential(nn.Linear(256, 16), nn.ReLU(inplace=True), nn.Linear(16, 5))

    def forward_once(self, x):
        output = self.cnn(x)
        return self.fc(output.view(output.size()[0], -1))

    def forward(self, input1, input2):
        return self.forward_once(input1), self.forward_once(input2)


class ContrastiveLoss(nn.Module):
    def __init__(self, margin=2.0):
        super().__init__()
        self.margin = margin

    def forward(self, output1, output2, label):
        distance = F.pairwise_distance(output1, output2, keepdim=True)
        near = (1 - label) * torch.pow(distance, 2)
        return torch.mean(near + label * torch.pow(torch.clamp(self.margin - distance, min=0.0), 2))


torch.manual_seed(41)
loader = DataLoader(Pairs(67), shuffle=True, batch_size=16)
net, criterion = SiameseNetwork(), ContrastiveLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)

for epoch in range(2):
    distances = []
    for img0, img1, label in loader:
        optimizer.zero_grad()
        output1, output2 = net(img0, img1)
        loss = criterion(output1, output2, label)
        loss.backward()
        optimizer.step()
        distances.append((F.pairwise_distance(output1, output2).detach(), label.squeeze(1)))
    far = torch.cat([d[label > 0] for d, label in distances])
    print(f"epoch {epoch} loss {loss.item():.4f} far {len(far)} at {far.mean().item():.4f}")

net.eval()
with torch.no_grad():
    same = [F.pairwise_distance(*net(a, b)).lt(1.0).sum().item() for a, b, _ in loader]
print("near", same)
torch.save(net.state_dict(), sys.argv[1])
