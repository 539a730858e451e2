"""fastai on scikit-learn's handwritten digits: a Learner, the one-cycle policy, a log in a file.

An ordinary single-process program:    python examples/fastai_digits.py [weights.pt]
"""

import sys

import torch
from fastai.callback.progress import CSVLogger
from fastai.callback.schedule import fit_one_cycle  # noqa: F401  (gives Learner its method)
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.losses import CrossEntropyLossFlat
from fastai.metrics import accuracy
from fastai.optimizer import SGD
from fastai.torch_core import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset, random_split

set_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.images / 16.0, dtype=torch.float32)[:, None], torch.tensor(digits.target))
train, valid = random_split(data, [1397, 400])
loaders = DataLoaders.from_dsets(train, valid, bs=32, device="cpu", num_workers=0)
model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10))
learner = Learner(loaders, model, CrossEntropyLossFlat(), SGD, metrics=accuracy, cbs=CSVLogger())
learner.fit_one_cycle(3, 0.1)
loss, right = learner.validate()
print(f"loss {loss:.4f} accuracy {right:.4f}")
torch.save(model.state_dict(), sys.argv[1] if len(sys.argv) > 1 else "fastai_digits.pt")
