"""segmentation-models-pytorch on the photograph of a flower that scikit-learn ships: petals against the rest.

An ordinary single-process program:    python examples/smp_flower.py [weights.pt]
The mask to learn is what the colour says: red above green. The samples are tiles of the photograph.
"""

import sys

import segmentation_models_pytorch as smp
import torch
from sklearn.datasets import load_sample_image
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
photograph = torch.tensor(load_sample_image("flower.jpg").copy()).permute(2, 0, 1).float() / 255.0
tiles = photograph[:, :416, :640].unfold(1, 32, 32).unfold(2, 32, 32).permute(1, 2, 0, 3, 4).reshape(-1, 3, 32, 32)
masks = (tiles[:, :1] > tiles[:, 1:2]).float()
grey = tiles.mean(dim=1, keepdim=True)
train, test, _ = random_split(TensorDataset(grey, masks), [60, 30, len(grey) - 90])
train, test = DataLoader(train, batch_size=16, shuffle=True), DataLoader(test, batch_size=16)
model = smp.Unet("resnet18", encoder_weights=None, in_channels=1, classes=1, decoder_channels=(32, 16, 16, 8, 8))
criterion = smp.losses.DiceLoss("binary")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for epoch in range(2):
    model.train()
    for images, target in train:
        loss = criterion(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        stats = [smp.metrics.get_stats(model(x).sigmoid(), y.long(), mode="binary", threshold=0.5) for x, y in test]
    counts = (torch.cat(part) for part in zip(*stats, strict=True))
    print(f"epoch {epoch} loss {loss.item():.3f} iou {smp.metrics.iou_score(*counts, reduction='micro'):.3f}")
torch.save(model.state_dict(), sys.argv[1] if len(sys.argv) > 1 else "smp_flower.pt")
