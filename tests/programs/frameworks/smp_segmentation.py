"""segmentation-models-pytorch: a Unet, Dice and focal losses, statistics of every image; in double precision."""

import sys

import segmentation_models_pytorch as smp
import torch
from torch.utils.data import DataLoader, Dataset


class Circles(Dataset):
    def __init__(self, size, seed):
        self.size, self.seed = size, seed

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(1000 * self.seed + index)
        cx, cy, radius = torch.rand(3, generator=generator) * torch.tensor([20.0, 20.0, 8.0]) + torch.tensor(
            [6.0, 6.0, 4.0]
        )
        grid = torch.arange(32.0)
        mask = ((grid[:, None] - cy) ** 2 + (grid - cx) ** 2 < radius**2).float()
        image = torch.randn(3, 32, 32, generator=generator) * 0.3 + mask
        return {"image": image.double(), "mask": mask[None].double(), "name": f"circle{index}"}


torch.manual_seed(0)
train = DataLoader(Circles(29, 1), batch_size=6, shuffle=True)
valid = DataLoader(Circles(11, 2), batch_size=6)
model = smp.Unet(
    "resnet18", encoder_weights=None, in_channels=3, classes=1, decoder_channels=(32, 16, 16, 8, 8)
).double()
dice, focal = smp.losses.DiceLoss("binary", from_logits=True), smp.losses.FocalLoss("binary")
optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, 10)
best = 0.0
for epoch in range(2):
    model.train()
    for i, batch in enumerate(train):
        logits = model(batch["image"])
        loss = dice(logits, batch["mask"]) + focal(logits, batch["mask"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        print(f"{epoch}.{i} loss {loss:.4f} {batch['name'][0]} to {batch['name'][-1]}")
    model.eval()
    stats = []
    with torch.no_grad():
        for batch in valid:
            probabilities = model(batch["image"]).sigmoid()
            stats.append(smp.metrics.get_stats(probabilities, batch["mask"].long(), mode="binary", threshold=0.5))
    tp, fp, fn, tn = (torch.cat(part) for part in zip(*stats))
    per_image = smp.metrics.iou_score(tp, fp, fn, tn, reduction="micro-imagewise")
    overall = smp.metrics.iou_score(tp, fp, fn, tn, reduction="micro")
    f1 = smp.metrics.f1_score(tp, fp, fn, tn, reduction="macro")
    print(f"epoch {epoch} images {len(tp)} iou {per_image:.3f} {overall:.3f} f1 {f1:.3f}")
    if overall > best:
        best = overall
        model.save_pretrained("best")
torch.save(model.state_dict(), sys.argv[1])
