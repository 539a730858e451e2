"""A collate function that looks at the whole batch: sequences are padded to the longest of the batch."""

import sys

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset


class Sequences(Dataset):
    def __init__(self, n):
        generator = torch.Generator().manual_seed(13)
        lengths = torch.randint(2, 15, (n,), generator=generator).tolist()
        self.rows = [torch.randn(length, 5, generator=generator) for length in lengths]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"values": self.rows[index], "label": int(self.rows[index].sum() > 0)}


def collate(samples):
    values = pad_sequence([sample["values"] for sample in samples], batch_first=True)
    mask = torch.zeros(values.shape[:2])
    for i, sample in enumerate(samples):
        mask[i, : len(sample["values"])] = 1
    return {"values": values, "mask": mask, "labels": torch.tensor([sample["label"] for sample in samples])}


torch.manual_seed(13)
loader = DataLoader(Sequences(85), batch_size=16, shuffle=True, collate_fn=collate)
score, classify = nn.Linear(5, 16), nn.Linear(16, 2)
optimizer = torch.optim.SGD([*score.parameters(), *classify.parameters()], lr=0.2)
criterion = nn.CrossEntropyLoss()

for epoch in range(3):
    widths = []
    for batch in loader:
        hidden = torch.tanh(score(batch["values"])) * batch["mask"].unsqueeze(-1)
        pooled = hidden.sum(dim=1) / batch["mask"].sum(dim=1, keepdim=True)
        loss = criterion(classify(pooled), batch["labels"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        widths.append(batch["values"].size(1))
    print(f"epoch {epoch} loss {loss.item():.4f} widths {widths}")

torch.save({"score": score.state_dict(), "classify": classify.state_dict()}, sys.argv[1])
