"""BYOL as one module: an online network with batch norm, a target network that follows it, no negatives."""

import copy
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def mlp(inputs, hidden, outputs):
    layers = nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True), nn.Linear(hidden, outputs)
    return nn.Sequential(*layers)


class BYOL(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.online_encoder = nn.Sequential(encoder, mlp(12, 16, 8))
        self.target_encoder = copy.deepcopy(self.online_encoder)
        self.target_encoder.requires_grad_(False)
        self.predictor = mlp(8, 16, 8)

    @torch.no_grad()
    def update_target(self, beta=0.95):
        for online, target in zip(self.online_encoder.parameters(), self.target_encoder.parameters()):
            target.data = target.data * beta + (1 - beta) * online.data

    def forward(self, x1, x2):
        p1, p2 = self.predictor(self.online_encoder(x1)), self.predictor(self.online_encoder(x2))
        with torch.no_grad():
            z1, z2 = self.target_encoder(x1).detach_(), self.target_encoder(x2).detach_()
        loss = 2 - 2 * F.cosine_similarity(p1, z2, dim=-1) + 2 - 2 * F.cosine_similarity(p2, z1, dim=-1)
        return loss.mean()


torch.manual_seed(45)
loader = DataLoader(TensorDataset(torch.randn(70, 3, 4)), batch_size=16, shuffle=True)
model = BYOL(nn.Sequential(nn.Flatten(), nn.Linear(12, 12), nn.ReLU()))
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.02, momentum=0.9)

for epoch in range(2):
    for (images,) in loader:
        loss = model(images + 0.1 * torch.randn_like(images), images.flip(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.update_target()
    print(f"epoch {epoch} loss {loss.item():.4f} batches {int(model.predictor[1].num_batches_tracked)}")

torch.save(model.state_dict(), sys.argv[1])
