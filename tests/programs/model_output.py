"""Outputs of every kind: an OrderedDict with attributes that also carries its loss, a named tuple, None, a string."""

import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, fields
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ModelOutput(OrderedDict):
    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                OrderedDict.__setitem__(self, field.name, value)

    def __getitem__(self, key):
        return dict(self.items())[key] if isinstance(key, str) else tuple(self.values())[key]

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __setattr__(self, name, value):
        if name in self and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)


@dataclass
class ClassifierOutput(ModelOutput):
    loss: Optional[torch.Tensor] = None
    logits: Optional[torch.Tensor] = None
    hidden_states: Optional[tuple] = None


Rich = namedtuple("Rich", ["scores", "anchors", "aux", "name", "number"])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(7, 12), nn.Linear(12, 12)])
        self.head = nn.Linear(12, 3)

    def forward(self, inputs, labels=None, output_hidden_states=False):
        hidden, states = inputs, ()
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))
            states += (hidden,)
        logits = self.head(hidden)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return ClassifierOutput(loss=loss, logits=logits, hidden_states=states if output_hidden_states else None)


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 5)
        self.register_buffer("anchors", torch.linspace(-1, 1, 5))

    def forward(self, x):
        return Rich(self.body(x), self.anchors * 2, None, "ranker", 5)


torch.manual_seed(48)
loader = DataLoader(TensorDataset(torch.randn(54, 7), torch.randint(0, 3, (54,))), batch_size=10, shuffle=True)
model, ranker = Classifier(), Ranker()
optimizer = torch.optim.AdamW([*model.parameters(), *ranker.parameters()], lr=1e-3)

for epoch in range(2):
    for x, y in loader:
        outputs = model(x, labels=y, output_hidden_states=True)
        rich = ranker(outputs.hidden_states[-1])
        loss = outputs.loss + ((rich.scores - rich.anchors) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert outputs[0] is outputs.loss and outputs["logits"] is outputs.logits and rich.aux is None
    plain = model(x)
    print(f"epoch {epoch} loss {outputs.loss.item():.4f} {loss.item():.4f} {list(outputs)} {list(plain)} {rich.name}")
    top = plain.logits.softmax(-1).max(-1).values.mean().item()
    print(f"top {top:.4f} {rich.number} {tuple(plain[0].shape)}")

torch.save({"model": model.state_dict(), "ranker": ranker.state_dict()}, sys.argv[1])
