"""skorch on scikit-learn's handwritten digits: a network as an estimator, scored and saved as one.

An ordinary single-process program:    python examples/skorch_digits.py [weights.pt]
"""

import sys

import torch
from sklearn.datasets import load_digits
from sklearn.metrics import classification_report
from sklearn.model_selection import train_test_split
from skorch import NeuralNetClassifier
from skorch.callbacks import Checkpoint, EpochScoring
from torch import nn

torch.manual_seed(0)
digits = load_digits()
images = (digits.data / 16.0).astype("float32")
x_train, x_test, y_train, y_test = train_test_split(images, digits.target, test_size=400, random_state=0)
net = NeuralNetClassifier(
    nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
    criterion=nn.CrossEntropyLoss,
    lr=0.1,
    batch_size=32,
    max_epochs=3,
    optimizer__momentum=0.9,
    iterator_train__shuffle=True,
    callbacks=[EpochScoring("f1_macro", lower_is_better=False), Checkpoint(dirname="best")],
)
net.fit(x_train, y_train)
print(classification_report(y_test, net.predict(x_test), digits=3))
torch.save(net.module_.state_dict(), sys.argv[1] if len(sys.argv) > 1 else "skorch_digits.pt")
