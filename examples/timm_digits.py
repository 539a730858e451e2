"""timm on scikit-learn's handwritten digits: a small ResNet with timm's optimizer, schedule and averaged weights.

An ordinary single-process program:    python examples/timm_digits.py [weights.pt]
"""

import sys

import timm
import torch
from sklearn.datasets import load_digits
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3, accuracy, random_seed
from torch.utils.data import DataLoader, TensorDataset, random_split

random_seed(0, 0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.images / 16.0, dtype=torch.float32)[:, None], torch.tensor(digits.target))
train, test, _ = random_split(data, [397, 200, 1200])
train, test = DataLoader(train, batch_size=64, shuffle=True), DataLoader(test, batch_size=64)
model = timm.create_model("resnet10t", in_chans=1, num_classes=10)
averaged = ModelEmaV3(model, decay=0.9)
criterion = LabelSmoothingCrossEntropy(0.1)
optimizer = create_optimizer_v2(model, opt="sgd", lr=0.005, momentum=0.9, weight_decay=1e-4)
scheduler = CosineLRScheduler(optimizer, t_initial=2, lr_min=1e-3)
for epoch in range(2):
    model.train()
    losses, top1 = AverageMeter(), AverageMeter()
    for images, labels in train:
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        averaged.update(model)
        losses.update(loss.item(), len(images))
    model.eval()
    with torch.no_grad():
        for images, labels in test:
            top1.update(accuracy(model(images), labels)[0].item(), len(images))
    scheduler.step(epoch + 1)
    print(f"epoch {epoch} loss {losses.avg:.3f} accuracy {top1.avg:.1f} of {top1.count}")
torch.save(model.state_dict(), sys.argv[1] if len(sys.argv) > 1 else "timm_digits.pt")
