"""A GRU over packed sequences: lengths differ by row, the collate function pads and sorts."""

import sys

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset


class Names(Dataset):
    def __init__(self, n):
        generator = torch.Generator().manual_seed(38)
        self.rows = [
            torch.randint(1, 15, (int(length),), generator=generator)
            for length in torch.randint(2, 10, (n,), generator=generator)
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i], int(self.rows[i].float().mean() > 7.5)


def collate(batch):
    batch.sort(key=lambda pair: len(pair[0]), reverse=True)
    lengths = torch.tensor([len(row) for row, _ in batch])
    return pad_sequence([row for row, _ in batch]), lengths, torch.tensor([label for _, label in batch])


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(15, 8, padding_idx=0)
        self.gru = nn.GRU(8, 10, bidirectional=True)
        self.fc = nn.Linear(20, 2)

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.embedding(words), lengths.cpu())
        out, hidden = self.gru(packed)
        out, _ = pad_packed_sequence(out)
        return self.fc(torch.cat([hidden[-1], hidden[-2]], dim=1)), out


class Direct(nn.Module):
    """Takes packed rows from outside."""

    def __init__(self):
        super().__init__()
        self.rnn, self.fc = nn.RNN(3, 5, batch_first=True), nn.Linear(5, 1)

    def forward(self, packed):
        _, hidden = self.rnn(packed)
        return self.fc(hidden.squeeze(0))


torch.manual_seed(38)
loader = DataLoader(Names(61), batch_size=12, shuffle=True, collate_fn=collate)
model, direct = Tagger(), Direct()
optimizer = torch.optim.Adam([*model.parameters(), *direct.parameters()], lr=2e-3)

for epoch in range(2):
    right = 0
    for words, lengths, labels in loader:
        logits, out = model(words, lengths)
        values = nn.functional.one_hot(words % 3, 3).float().transpose(0, 1)
        level = direct(pack_padded_sequence(values, lengths, batch_first=True, enforce_sorted=False))
        loss = nn.functional.cross_entropy(logits, labels) + (level.squeeze(1) - labels).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right += (logits.argmax(1) == labels).sum().item()
    print(f"epoch {epoch} loss {loss.item():.4f} right {right}/61 longest {words.size(0)} out {tuple(out.shape)}")

torch.save({"tagger": model.state_dict(), "direct": direct.state_dict()}, sys.argv[1])
