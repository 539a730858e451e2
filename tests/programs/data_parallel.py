"""Written for nn.DataParallel: wrapped if there is more than one GPU or none, `.module` and its keys in use."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(3))
        self.classifier = nn.Linear(54, 3)

    def forward(self, x, return_features=False):
        features = self.features(x).view(x.size(0), -1)
        logits = self.classifier(features)
        return (logits, features) if return_features else logits

    def l2(self):
        return self.classifier.weight.pow(2).sum()


torch.manual_seed(11)
x, y = torch.randn(101, 1, 9, 9), torch.randint(0, 3, (101,))
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = Net()
if torch.cuda.device_count() != 1:
    print("Let's use nn.DataParallel")
    model = nn.DataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()

for epoch in range(3):
    model.train()
    for xb, yb in loader:
        logits, features = model(xb, return_features=True)
        net = model.module if isinstance(model, nn.DataParallel) else model
        loss = criterion(logits, yb) + 1e-3 * features.pow(2).mean() + 1e-3 * net.l2()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        correct = sum((model(xb).argmax(1) == yb).sum().item() for xb, yb in loader)
    print(f"epoch {epoch} loss {loss.mean().item():.4f} correct {correct}")

print(sorted(model.state_dict()))
clean = {key.removeprefix("module."): value for key, value in model.state_dict().items()}
Net().load_state_dict(clean)
torch.save(model.state_dict(), sys.argv[1])
