"""MONAI on scikit-learn's handwritten digits: transforms on dictionaries, a DenseNet, the area under the curve.

An ordinary single-process program:    python examples/monai_digits.py [weights.pt]
"""

import sys

import torch
from monai.data import CacheDataset, DataLoader, decollate_batch, set_track_meta
from monai.metrics import ROCAUCMetric
from monai.networks.nets import DenseNet
from monai.transforms import (
    Activations,
    AsDiscrete,
    Compose,
    EnsureChannelFirstd,
    EnsureTyped,
    Resized,
    ScaleIntensityd,
)
from monai.utils import set_determinism
from sklearn.datasets import load_digits

set_determinism(0)
set_track_meta(False)  # plain tensors: there is no file behind an image, and batches of plain tensors can be divided
digits = load_digits()
samples = [{"image": x, "label": int(y)} for x, y in zip(digits.images.astype("float32"), digits.target, strict=True)]
keys = ["image"]
transform = Compose(
    [
        EnsureChannelFirstd(keys, channel_dim="no_channel"),
        ScaleIntensityd(keys),
        Resized(keys, spatial_size=(16, 16)),
        EnsureTyped(keys),
    ]
)
train = DataLoader(CacheDataset(samples[:300], transform, progress=False), batch_size=32, shuffle=True)
test = DataLoader(CacheDataset(samples[300:450], transform, progress=False), batch_size=32)
model = DenseNet(2, 1, 10, init_features=16, growth_rate=8, block_config=(2, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
criterion = torch.nn.CrossEntropyLoss()
auc, to_probability, to_onehot = ROCAUCMetric(), Activations(softmax=True), AsDiscrete(to_onehot=10)
for epoch in range(2):
    model.train()
    total = 0.0
    for batch in train:
        optimizer.zero_grad()
        loss = criterion(model(batch["image"]), batch["label"])
        loss.backward()
        optimizer.step()
        total += loss.item() * len(batch["label"])
    model.eval()
    with torch.no_grad():
        for batch in test:
            predictions = [to_probability(row) for row in decollate_batch(model(batch["image"]))]
            auc(predictions, [to_onehot(label) for label in decollate_batch(batch["label"], detach=False)])
    print(f"epoch {epoch} loss {total / len(train.dataset):.3f} area {auc.aggregate():.3f}")
    auc.reset()
torch.save(model.state_dict(), sys.argv[1] if len(sys.argv) > 1 else "monai_digits.pt")
