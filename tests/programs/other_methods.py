"""Methods other than forward called with a batch: encode, training_step as in Lightning, a greedy generate."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Captioner(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 12), nn.Tanh())
        self.embedding, self.cell, self.out = nn.Embedding(9, 12), nn.GRUCell(12, 12), nn.Linear(12, 9)

    def encode(self, images):
        return self.encoder(images)

    def forward(self, images, captions):
        hidden, steps = self.encode(images), []
        for t in range(captions.size(1)):
            hidden = self.cell(self.embedding(captions[:, t]), hidden)
            steps.append(self.out(hidden))
        return torch.stack(steps, dim=1)

    def training_step(self, batch, batch_idx):
        images, captions = batch
        logits = self.forward(images, captions[:, :-1])
        loss = F.cross_entropy(logits.transpose(1, 2), captions[:, 1:])
        return {"loss": loss, "accuracy": (logits.argmax(-1) == captions[:, 1:]).float().mean()}

    @torch.no_grad()
    def generate(self, images, length=5):
        hidden = self.encode(images)
        word = torch.zeros(images.size(0), dtype=torch.long)
        words, finished = [], torch.zeros(images.size(0), dtype=torch.bool)
        for _ in range(length):
            hidden = self.cell(self.embedding(word), hidden)
            word = self.out(hidden).argmax(dim=-1).masked_fill(finished, 8)
            finished = finished | (word == 8)
            words.append(word)
            if finished.all():
                break
        return torch.stack(words, dim=1)


torch.manual_seed(68)
images, captions = torch.randn(45, 8), torch.randint(0, 9, (45, 6))
loader = DataLoader(TensorDataset(images, captions), batch_size=8, shuffle=True)
model = Captioner()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

for epoch in range(2):
    model.train()
    for i, batch in enumerate(loader):
        result = model.training_step(batch, i)
        loss = result["loss"] + 1e-2 * model.encode(batch[0]).pow(2).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    print(f"epoch {epoch} loss {loss.item():.4f} accuracy {result['accuracy'].item():.4f}")
    print(model.generate(batch[0]).tolist())

torch.save(model.state_dict(), sys.argv[1])
