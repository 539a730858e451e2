"""timm: a small ResNet with what its train.py uses: optimizer and scheduler factories, mixup, EMA, scaler, saver.

In double precision: weights that start at zero (the biases of batch norm) are sums of many small gradients of both
signs after a few steps, and in single precision rounding shows in their third digit.
"""

import os
import sys
from collections import OrderedDict

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, CheckpointSaver, ModelEmaV3, NativeScaler, accuracy, random_seed, update_summary
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

random_seed(3, 0)
images = torch.randn(110, 3, 32, 32, dtype=torch.float64)
labels = images[:, :, 0, :8].mean(dim=2).argmax(dim=1)
train = DataLoader(TensorDataset(images[:70], labels[:70]), batch_size=12, shuffle=True, drop_last=True)
valid = DataLoader(TensorDataset(images[70:], labels[70:]), batch_size=12)
model = timm.create_model("resnet10t", pretrained=False, num_classes=3, in_chans=3).double()
print(type(model).__name__, sum(p.numel() for p in model.parameters()))
ema = ModelEmaV3(model, decay=0.9)
optimizer = create_optimizer_v2(model, opt="sgd", lr=5e-4, momentum=0.9, weight_decay=1e-4)
scheduler, epochs = create_scheduler_v2(optimizer, sched="cosine", num_epochs=2, warmup_epochs=0, min_lr=1e-5)
mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, prob=0.7, label_smoothing=0.1, num_classes=3)
scaler = NativeScaler(device="cpu")
os.makedirs("output", exist_ok=True)
saver = CheckpointSaver(
    model, optimizer, amp_scaler=scaler, checkpoint_dir="output", recovery_dir="output", max_history=2
)


def train_one_epoch(epoch):
    losses = AverageMeter()
    model.train()
    for i, (inputs, target) in enumerate(train):
        inputs, target = mixup(inputs, target)
        loss = SoftTargetCrossEntropy()(model(inputs), target)
        optimizer.zero_grad()
        scaler(loss, optimizer, clip_grad=1.0, clip_mode="norm", parameters=model.parameters())
        ema.update(model, step=epoch * len(train) + i)
        losses.update(loss.item(), inputs.size(0))
        print(
            f"Train: {epoch} [{i}/{len(train)}] Loss: {losses.val:.4f} ({losses.avg:.4f})",
            f"LR: {optimizer.param_groups[0]['lr']:.2e}",
        )
        scheduler.step_update(num_updates=epoch * len(train) + i, metric=losses.avg)
    return OrderedDict([("loss", losses.avg)])


def validate(network):
    losses, top1, top2 = AverageMeter(), AverageMeter(), AverageMeter()
    network.eval()
    with torch.no_grad():
        for inputs, target in valid:
            output = network(inputs)
            acc1, acc2 = accuracy(output, target, topk=(1, 2))
            losses.update(nn.functional.cross_entropy(output, target).item(), inputs.size(0))
            top1.update(acc1.item(), output.size(0))
            top2.update(acc2.item(), output.size(0))
    return OrderedDict([("loss", losses.avg), ("top1", top1.avg), ("top2", top2.avg)])


for epoch in range(2):
    train_metrics = train_one_epoch(epoch)
    eval_metrics = validate(model)
    averaged = validate(ema.module)
    print({k: round(v, 3) for k, v in eval_metrics.items()}, "averaged", {k: round(v, 3) for k, v in averaged.items()})
    update_summary(epoch, train_metrics, eval_metrics, "output/summary.csv", write_header=epoch == 0)
    best, best_epoch = saver.save_checkpoint(epoch, metric=eval_metrics["top1"])
    scheduler.step(epoch + 1, eval_metrics["top1"])
print("best", round(best, 3), best_epoch)
torch.save({"model": model.state_dict(), "ema": ema.module.state_dict()}, sys.argv[1])
