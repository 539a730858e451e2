"""fastai: DataLoaders from data sets, a Learner with one-cycle training, callbacks, a saved and loaded state."""

import sys
import warnings

import torch
from fastai.callback.progress import CSVLogger
from fastai.callback.schedule import fit_one_cycle  # noqa: F401  (patches Learner)
from fastai.callback.tracker import EarlyStoppingCallback, SaveModelCallback
from fastai.callback.training import GradientAccumulation, GradientClip
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from fastai.losses import CrossEntropyLossFlat
from fastai.metrics import F1Score, Perplexity, accuracy
from fastai.optimizer import SGD
from fastai.torch_core import set_seed
from torch import nn
from torch.utils.data import TensorDataset

warnings.filterwarnings("ignore")
set_seed(0, reproducible=True)
x = torch.randn(230, 8)
y = x[:, :3].argmax(dim=1)
train = DataLoader(TensorDataset(x[:133], y[:133]), bs=16, shuffle=True)
valid = DataLoader(TensorDataset(x[133:], y[133:]), bs=16)
loaders = DataLoaders(train, valid, device="cpu")
model = nn.Sequential(nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3))


def learner(model):
    return Learner(
        loaders,
        model,
        loss_func=CrossEntropyLossFlat(),
        opt_func=SGD,
        metrics=[accuracy, F1Score(average="macro"), Perplexity()],
        path=".",
        cbs=[CSVLogger("history.csv", append=True), GradientClip(1.0)],
    )


first = learner(model)
first.fit_one_cycle(3, 0.1, cbs=[SaveModelCallback(fname="best", with_opt=True), EarlyStoppingCallback(patience=2)])
print("losses", [round(float(v), 4) for v in first.recorder.losses])
second = learner(nn.Sequential(nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3)))
second.load("best", with_opt=True)
second.fit(2, 0.02, wd=1e-3, cbs=[GradientAccumulation(n_acc=32)])
print("validated", [round(v, 4) for v in second.validate()])
predictions, targets = second.get_preds(dl=valid)
print("predicted", predictions.argmax(dim=1).tolist(), (predictions.argmax(dim=1) == targets).sum().item())
second.save("end")
torch.save(second.model.state_dict(), sys.argv[1])
