"""A classifier with dropout and augmentation in its forward; batches of 13, of 4 at the end, and single rows."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(10, 32), nn.Linear(32, 32), nn.Linear(32, 3)
        self.drop, self.alpha, self.slope = nn.Dropout(0.3), nn.AlphaDropout(0.1), nn.RReLU()

    def forward(self, x):
        if self.training:
            x = x + 0.05 * torch.randn_like(x)
            x = x * torch.empty(x.size(0), 1).bernoulli_(0.9)
        x = self.alpha(F.selu(self.fc1(self.drop(x))))
        return self.fc3(F.dropout(self.slope(self.fc2(x)), 0.5, self.training))


torch.manual_seed(71)
x, y = torch.randn(121, 10), torch.randint(0, 3, (121,))
train = DataLoader(TensorDataset(x[:95], y[:95]), batch_size=13, shuffle=True)
single = DataLoader(TensorDataset(x[:5], y[:5]), batch_size=1)
test = DataLoader(TensorDataset(x[95:], y[95:]), batch_size=20)
model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for epoch in range(3):
    model.train()
    for loader in (train, single):
        for data, target in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(data).argmax(1) == target).sum().item() for data, target in test)
        model.train()  # Monte Carlo dropout
        spread = torch.stack([model(x[95:]).softmax(1) for _ in range(4)]).std(0).mean()
    print(f"epoch {epoch} loss {loss.item():.6f} right {right} spread {spread:.6f} next {torch.rand(1).item():.6f}")

torch.save(model.state_dict(), sys.argv[1])
