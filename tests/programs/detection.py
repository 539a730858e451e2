"""A detector that takes lists of images and of targets with any number of boxes, and returns dicts as torchvision's."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scenes(Dataset):
    def __init__(self, n):
        generator = torch.Generator().manual_seed(49)
        self.images = torch.rand(n, 3, 8, 8, generator=generator)
        self.counts = torch.randint(0, 4, (n,), generator=generator).tolist()
        self.boxes = [torch.rand(c, 4, generator=generator) for c in self.counts]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i], {"boxes": self.boxes[i], "labels": torch.ones(self.counts[i], dtype=torch.int64)}


class Detector(nn.Module):
    """Nine anchors per image; in training a dict of losses, in evaluation one dict per image."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), nn.ReLU())
        self.score, self.box = nn.Conv2d(6, 2, 1), nn.Conv2d(6, 4, 1)

    def forward(self, images, targets=None):
        features = self.backbone(torch.stack(images))
        scores = self.score(features).flatten(2).transpose(1, 2)
        boxes = self.box(features).flatten(2).transpose(1, 2).sigmoid()
        if self.training:
            return self.losses(scores, boxes, targets)
        found = []
        for score, box in zip(scores.softmax(-1)[..., 1], boxes):
            keep = score > score.median()
            found.append({"boxes": box[keep], "scores": score[keep], "labels": torch.ones(int(keep.sum()))})
        return found

    def losses(self, scores, boxes, targets):
        classes, regression, matched = [], 0.0, 0
        for i, target in enumerate(targets):
            wanted = torch.zeros(scores.size(1), dtype=torch.long)
            if len(target["boxes"]):
                nearest = torch.cdist(boxes[i].detach(), target["boxes"]).argmin(dim=0)
                wanted[nearest] = target["labels"]
                regression = regression + F.l1_loss(boxes[i][nearest], target["boxes"], reduction="sum")
                matched += len(nearest)
            classes.append(wanted)
        return {
            "loss_classifier": F.cross_entropy(scores.flatten(0, 1), torch.cat(classes)),
            "loss_box_reg": regression / max(matched, 1),
        }


torch.manual_seed(49)
loader = DataLoader(Scenes(29), batch_size=6, shuffle=True, collate_fn=lambda batch: tuple(zip(*batch)))
model = Detector()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)

for epoch in range(2):
    model.train()
    for images, targets in loader:
        images = list(image for image in images)
        losses = model(images, [{k: v for k, v in t.items()} for t in targets])
        loss = sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}", {k: f"{v.item():.4f}" for k, v in losses.items()})
    model.eval()
    with torch.no_grad():
        found = [result for images, _ in loader for result in model(list(images))]
    print(len(found), sum(len(f["boxes"]) for f in found), f"{torch.cat([f['scores'] for f in found]).mean():.4f}")

torch.save(model.state_dict(), sys.argv[1])
