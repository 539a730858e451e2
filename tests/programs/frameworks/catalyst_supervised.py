"""Catalyst: a SupervisedRunner with its callbacks, CSV and TensorBoard loggers, the best weights loaded at the end."""

import sys
from collections import OrderedDict

import torch
from catalyst import dl, utils
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

utils.set_global_seed(0)
x = torch.randn(230, 8)
y = x[:, :3].argmax(dim=1)
loaders = OrderedDict(
    train=DataLoader(TensorDataset(x[:133], y[:133]), batch_size=16, shuffle=True),
    valid=DataLoader(TensorDataset(x[133:], y[133:]), batch_size=16),
)
model = nn.Sequential(nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2], gamma=0.3)

runner = dl.SupervisedRunner(input_key="features", output_key="logits", target_key="targets", loss_key="loss")
runner.train(
    model=model,
    criterion=nn.CrossEntropyLoss(),
    optimizer=optimizer,
    scheduler=scheduler,
    loaders=loaders,
    num_epochs=4,
    callbacks=[
        dl.AccuracyCallback(input_key="logits", target_key="targets", topk=(1, 2)),
        dl.PrecisionRecallF1SupportCallback(input_key="logits", target_key="targets", num_classes=3),
        dl.AUCCallback(input_key="logits", target_key="targets"),
        dl.EarlyStoppingCallback(patience=2, loader_key="valid", metric_key="loss", minimize=True),
        dl.CheckpointCallback("logs/checkpoints", loader_key="valid", metric_key="loss", minimize=True, topk=2),
        dl.OptimizerCallback(
            metric_key="loss", grad_clip_fn=nn.utils.clip_grad_norm_, grad_clip_params={"max_norm": 1.0}
        ),
    ],
    loggers={"csv": dl.CSVLogger("logs/csv"), "board": dl.TensorboardLogger("logs/board")},
    logdir="logs",
    valid_loader="valid",
    valid_metric="loss",
    minimize_valid_metric=True,
    load_best_on_end=True,
    verbose=True,
    seed=7,
)
print("ended at epoch", runner.epoch_step, "batch", runner.batch_step, "sample", runner.sample_step)
accuracy = dl.AccuracyCallback(input_key="logits", target_key="targets")
print({k: round(float(v), 4) for k, v in runner.evaluate_loader(loader=loaders["valid"], callbacks=[accuracy]).items()})
right = rows = 0
for prediction in runner.predict_loader(loader=loaders["valid"]):
    rows += len(prediction["logits"])
    right += prediction["logits"].argmax(dim=1).sum().item()
print("predicted", rows, "sum", right)
torch.save(model.state_dict(), sys.argv[1])
