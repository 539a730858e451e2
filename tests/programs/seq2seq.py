"""Encoder, attention and decoder with teacher forcing decided by Python's random numbers, one step at a time."""

import random
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SOS, EOS, VOCABULARY = 0, 1, 13


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(VOCABULARY, 10), nn.GRU(10, 10, batch_first=True)

    def forward(self, words):
        return self.gru(self.embedding(words))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.Wa, self.Ua, self.Va = nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, 1, bias=False)

    def forward(self, query, keys):
        scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys))).squeeze(2).unsqueeze(1)
        weights = F.softmax(scores, dim=-1)
        return torch.bmm(weights, keys), weights


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.attention = nn.Embedding(VOCABULARY, 10), Attention()
        self.gru, self.out = nn.GRU(20, 10, batch_first=True), nn.Linear(10, VOCABULARY)

    def forward(self, outputs, hidden, target=None, steps=6):
        words = torch.empty(outputs.size(0), 1, dtype=torch.long).fill_(SOS)
        steps_out, attentions = [], []
        for i in range(steps):
            context, weights = self.attention(hidden.permute(1, 0, 2), outputs)
            step, hidden = self.gru(torch.cat((self.embedding(words), context), dim=2), hidden)
            step = self.out(step)
            steps_out.append(step)
            attentions.append(weights)
            words = target[:, i].unsqueeze(1) if target is not None else step.topk(1)[1].squeeze(-1).detach()
        return F.log_softmax(torch.cat(steps_out, dim=1), dim=-1), hidden, torch.cat(attentions, dim=1)


torch.manual_seed(39)
random.seed(39)
source = torch.randint(2, VOCABULARY, (45, 5))
target = torch.cat([source.flip(1), torch.full((45, 1), EOS)], dim=1)
loader = DataLoader(TensorDataset(source, target), batch_size=8, shuffle=True)
encoder, decoder = Encoder(), Decoder()
optimizer_e = torch.optim.Adam(encoder.parameters(), lr=1e-3)
optimizer_d = torch.optim.Adam(decoder.parameters(), lr=1e-3)
criterion = nn.NLLLoss()

for epoch in range(2):
    forced = 0
    for x, y in loader:
        optimizer_e.zero_grad()
        optimizer_d.zero_grad()
        outputs, hidden = encoder(x)
        use = random.random() < 0.5
        forced += use
        scores, _, attention = decoder(outputs, hidden, y if use else None)
        loss = criterion(scores.view(-1, scores.size(-1)), y.view(-1))
        loss.backward()
        optimizer_e.step()
        optimizer_d.step()
    print(f"epoch {epoch} loss {loss.item():.4f} forced {forced} attention {attention.max().item():.4f}")

with torch.no_grad():
    outputs, hidden = encoder(source[:3])
    print("decoded", decoder(outputs, hidden)[0].argmax(-1).tolist())
torch.save({"encoder": encoder.state_dict(), "decoder": decoder.state_dict()}, sys.argv[1])
