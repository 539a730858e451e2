"""MONAI: cached dictionaries and transforms, a UNet, DiceCE, Dice per image after decollation, a sliding window."""

import sys

import numpy as np
import torch
from monai.data import CacheDataset, DataLoader, decollate_batch
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss
from monai.metrics import DiceMetric, compute_hausdorff_distance
from monai.networks.nets import UNet
from monai.transforms import Activations, AsDiscrete, Compose, EnsureChannelFirstd, EnsureTyped, ScaleIntensityd
from monai.utils import set_determinism

set_determinism(0)


def sample(i):
    generator = np.random.default_rng(i)
    cx, cy, radius = generator.uniform([8, 8, 4], [24, 24, 9])
    grid = np.arange(32.0)
    mask = ((grid[:, None] - cy) ** 2 + (grid - cx) ** 2 < radius**2).astype("float32")
    return {"image": generator.normal(mask, 0.4).astype("float32"), "label": mask}


keys = ["image", "label"]
transform = Compose(
    [EnsureChannelFirstd(keys, channel_dim="no_channel"), ScaleIntensityd(["image"]), EnsureTyped(keys)]
)
train = DataLoader(CacheDataset([sample(i) for i in range(29)], transform, progress=False), batch_size=6, shuffle=True)
valid = DataLoader(CacheDataset([sample(i) for i in range(29, 40)], transform, progress=False), batch_size=4)
model = UNet(spatial_dims=2, in_channels=1, out_channels=2, channels=(8, 16, 32), strides=(2, 2), num_res_units=1)
loss_function = DiceCELoss(to_onehot_y=True, softmax=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
dice = DiceMetric(include_background=False, reduction="mean", get_not_nans=True)
to_prediction = Compose([Activations(softmax=True), AsDiscrete(argmax=True, to_onehot=2)])
to_label = AsDiscrete(to_onehot=2)
best = -1.0
for epoch in range(3):
    model.train()
    for i, batch in enumerate(train):
        optimizer.zero_grad()
        loss = loss_function(model(batch["image"]), batch["label"])
        loss.backward()
        optimizer.step()
        print(f"{epoch}.{i} rows {batch['image'].shape[0]} loss {loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        for batch in valid:
            outputs = sliding_window_inference(batch["image"], (24, 24), 4, model, overlap=0.25)
            predictions = [to_prediction(item) for item in decollate_batch(outputs)]
            labels = [to_label(item) for item in decollate_batch(batch["label"])]
            dice(y_pred=predictions, y=labels)
        value, count = dice.aggregate()
        dice.reset()
        distance = compute_hausdorff_distance(torch.stack(predictions), torch.stack(labels))
    print(f"epoch {epoch} dice {value.item():.4f} of {int(count.item())} hausdorff {distance.mean().item():.3f}")
    if value.item() > best:
        best = value.item()
        torch.save(model.state_dict(), "best_metric_model.pth")
torch.save(model.state_dict(), sys.argv[1])
