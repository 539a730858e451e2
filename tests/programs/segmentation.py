"""Per-pixel cross-entropy with a void label, pixel accuracy and intersection over union."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES, VOID = 3, 255

torch.manual_seed(3)
images = torch.rand(53, 3, 12, 12)
masks = images.argmax(dim=1)
masks[:, 0, :] = VOID
loader = DataLoader(TensorDataset(images, masks), batch_size=16, shuffle=True)

model = nn.Sequential(
    nn.Conv2d(3, 12, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(12, 12, 3, stride=2, padding=1),
    nn.ReLU(),
    nn.ConvTranspose2d(12, CLASSES, 2, stride=2),
)
criterion = nn.CrossEntropyLoss(ignore_index=VOID)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)

for epoch in range(3):
    running = 0.0
    intersection, union = torch.zeros(CLASSES), torch.zeros(CLASSES)
    for x, target in loader:
        output = model(x)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item()
        prediction = output.argmax(dim=1)
        valid = target != VOID
        for c in range(CLASSES):
            predicted, true = (prediction == c) & valid, (target == c) & valid
            intersection[c] += (predicted & true).sum()
            union[c] += (predicted | true).sum()
        pixels = (prediction[valid] == target[valid]).float().mean()
    iou = (intersection / union.clamp(min=1)).mean()
    print(f"epoch {epoch} loss {running / len(loader):.4f} last pixel accuracy {pixels:.4f} mIoU {iou.item():.4f}")

torch.save(model.state_dict(), sys.argv[1])
