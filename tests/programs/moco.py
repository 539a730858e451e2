"""MoCo as one module: a momentum encoder, a queue of keys in a buffer with a pointer, updated inside forward."""

import copy
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class MoCo(nn.Module):
    def __init__(self, encoder, dim=6, K=24, m=0.9, T=0.2):
        super().__init__()
        self.K, self.m, self.T = K, m, T
        self.encoder_q, self.encoder_k = encoder, copy.deepcopy(encoder)
        for param in self.encoder_k.parameters():
            param.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(dim, K), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _momentum_update_key_encoder(self):
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            param_k.data = param_k.data * self.m + param_q.data * (1.0 - self.m)

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        batch_size = keys.shape[0]
        ptr = int(self.queue_ptr)
        places = (ptr + torch.arange(batch_size)) % self.K
        self.queue[:, places] = keys.T
        self.queue_ptr[0] = (ptr + batch_size) % self.K

    def forward(self, im_q, im_k):
        q = F.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            self._momentum_update_key_encoder()
            k = F.normalize(self.encoder_k(im_k), dim=1)
        l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        l_neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([l_pos, l_neg], dim=1) / self.T
        labels = torch.zeros(logits.shape[0], dtype=torch.long)
        self._dequeue_and_enqueue(k)
        return logits, labels


torch.manual_seed(44)
loader = DataLoader(TensorDataset(torch.randn(61, 10)), batch_size=8, shuffle=True)
model = MoCo(nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 6)))
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.03, momentum=0.9)
criterion = nn.CrossEntropyLoss()

for epoch in range(2):
    hits = 0
    for (x,) in loader:
        output, target = model(x + 0.05 * torch.randn(x.shape), x * 1.1)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hits += (output.argmax(1) == target).sum().item()
    print(f"epoch {epoch} loss {loss.item():.4f} hits {hits} pointer {int(model.queue_ptr)} {model.queue.std():.4f}")

torch.save(model.state_dict(), sys.argv[1])
