"""Accelerate on scikit-learn's handwritten digits: prepared objects, accumulated steps, metrics over all samples.

An ordinary single-process program:    python examples/accelerate_digits.py [weights.pt]
"""

import sys

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

set_seed(0)
accelerator = Accelerator(gradient_accumulation_steps=2)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data / 16.0, dtype=torch.float32), torch.tensor(digits.target))
train, test = random_split(data, [1397, 400])
train, test = DataLoader(train, batch_size=16, shuffle=True), DataLoader(test, batch_size=64)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
model, optimizer, train, test = accelerator.prepare(model, optimizer, train, test)

for epoch in range(3):
    for images, labels in train:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    right = rows = 0
    for images, labels in test:
        with torch.no_grad():
            guesses = model(images).argmax(dim=1)
        guesses, labels = accelerator.gather_for_metrics((guesses, labels))
        right, rows = right + (guesses == labels).sum().item(), rows + len(labels)
    accelerator.print(f"epoch {epoch} loss {loss.item():.4f} right {right} of {rows}")

accelerator.save_state("state")
weights = accelerator.unwrap_model(model).state_dict()
accelerator.save(weights, sys.argv[1] if len(sys.argv) > 1 else "accelerate_digits.pt")
