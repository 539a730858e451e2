"""A causal language model that returns its loss: the mean over tokens that are not ignored, in rows of any length."""

import sys
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Texts(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(63)
        self.rows = [torch.randint(1, 17, (int(k),), generator=g) for k in torch.randint(2, 12, (n,), generator=g)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i][:12]
        ids = torch.cat([row, torch.zeros(12 - len(row), dtype=torch.long)])
        return {
            "input_ids": ids,
            "attention_mask": (ids != 0).long(),
            "labels": ids.masked_fill(ids == 0, -100) if len(row) > 3 else torch.full((12,), -100),
        }


class Decoder(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(17, width), nn.Embedding(12, width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm, self.mlp = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Linear(24, width))

    def forward(self, ids, mask):
        positions = torch.arange(ids.size(1), device=ids.device).unsqueeze(0)
        hidden = self.wte(ids) + self.wpe(positions)
        causal = torch.triu(torch.ones(ids.size(1), ids.size(1), dtype=torch.bool), 1)
        mixed, _ = self.attention(hidden, hidden, hidden, attn_mask=causal, need_weights=False)
        hidden = self.norm(hidden + mixed) * mask.unsqueeze(-1)
        return hidden + self.mlp(hidden)


class CausalLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer, self.lm_head = Decoder(), nn.Linear(16, 17, bias=False)

    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = self.lm_head(self.transformer(input_ids, attention_mask))
        loss = None
        if labels is not None:
            shift_logits, shift_labels = logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
            loss_fct = nn.CrossEntropyLoss()
            loss = loss_fct(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1))
        return SimpleNamespace(loss=loss, logits=logits) if labels is None else (loss, logits)


torch.manual_seed(63)
loader = DataLoader(Texts(47), batch_size=9, shuffle=True)
model = CausalLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)

for epoch in range(2):
    total, tokens = 0.0, 0
    for batch in loader:
        loss, logits = model(**batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        n = (batch["labels"][:, 1:] != -100).sum().item()
        total, tokens = total + loss.item() * n, tokens + n
    print(f"epoch {epoch} loss {total / tokens:.4f} tokens {tokens} last {tuple(logits.shape)}")

torch.save(model.state_dict(), sys.argv[1])
