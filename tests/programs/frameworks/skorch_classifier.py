"""skorch: a classifier in a scikit-learn pipeline with callbacks, a grid search, a saved and reloaded net."""

import sys
import warnings

import numpy as np
import torch
from sklearn.metrics import confusion_matrix
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from skorch.callbacks import (
    Checkpoint,
    EarlyStopping,
    EpochScoring,
    GradientNormClipping,
    LoadInitState,
    LRScheduler,
    ProgressBar,
)
from skorch.dataset import Dataset
from skorch.helper import predefined_split
from torch import nn

warnings.filterwarnings("ignore")


class Net(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, 3), nn.Softmax(dim=-1))

    def forward(self, x):
        return self.layers(x)


torch.manual_seed(0)
generator = np.random.default_rng(0)
x = generator.normal(size=(230, 8)).astype("float32")
y = x[:, :3].argmax(axis=1)
common = {"lr": 0.1, "batch_size": 16, "optimizer__momentum": 0.9, "iterator_train__shuffle": True, "device": "cpu"}


def make(epochs, *callbacks):
    return NeuralNetClassifier(
        Net,
        criterion=nn.NLLLoss,
        max_epochs=epochs,
        train_split=predefined_split(Dataset(x[133:], y[133:])),
        callbacks=[
            ("f1", EpochScoring("f1_macro", lower_is_better=False)),
            ("train_acc", EpochScoring("accuracy", name="train_acc", on_train=True, lower_is_better=False)),
            ("clip", GradientNormClipping(1.0)),
            ("scheduler", LRScheduler("StepLR", step_size=2, gamma=0.5, event_name="event_lr")),
            *callbacks,
        ],
        **common,
    )


checkpoint = Checkpoint(dirname="checkpoints", monitor="valid_loss_best")
net = make(3, ("checkpoint", checkpoint), ("stop", EarlyStopping(patience=3)), ("bar", ProgressBar()))
pipe = make_pipeline(StandardScaler(), net)
pipe.fit(x[:133], y[:133])
print("accuracy", round(pipe.score(x[133:], y[133:]), 4))
print(confusion_matrix(y[133:], pipe.predict(x[133:])).tolist())
print("batches", [len(epoch["batches"]) for epoch in net.history])
print("sizes", [row["train_batch_size"] for row in net.history[-1]["batches"] if "train_batch_size" in row])

resumed = make(2, ("load", LoadInitState(Checkpoint(dirname="checkpoints", monitor="valid_loss_best"))))
resumed.fit(x[:133], y[:133])
print("epochs in history", len(resumed.history), [round(v, 4) for v in resumed.history[:, "train_loss"]])
resumed.save_params(f_params="net.pt", f_optimizer="optimizer.pt", f_history="history.json")

search = GridSearchCV(
    NeuralNetClassifier(Net, criterion=nn.NLLLoss, max_epochs=2, verbose=0, **common),
    {"lr": [0.05, 0.2], "module__hidden": [8]},
    cv=2,
    scoring="accuracy",
)
search.fit(x[:133], y[:133])
print("best", search.best_params_, [round(v, 4) for v in search.cv_results_["mean_test_score"]])
torch.save({"net": resumed.module_.state_dict(), "best": search.best_estimator_.module_.state_dict()}, sys.argv[1])
