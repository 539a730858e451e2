"""Lightning on scikit-learn's handwritten digits: a module, a trainer, the best checkpoint tested.

An ordinary single-device program:    python examples/lightning_digits.py [weights.pt]
"""

import sys

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics.classification import MulticlassAccuracy


class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)
        )
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = F.cross_entropy(self.net(images), labels)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        logits = self.net(images)
        self.accuracy(logits, labels)
        self.log("val_loss", F.cross_entropy(logits, labels))
        self.log("val_accuracy", self.accuracy)

    def on_train_epoch_end(self):
        values = self.trainer.callback_metrics
        print(f"epoch {self.current_epoch}", " ".join(f"{name} {values[name]:.4f}" for name in sorted(values)))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


L.seed_everything(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.images / 16.0, dtype=torch.float32)[:, None], torch.tensor(digits.target))
train, test = random_split(data, [1397, 400])
train, test = DataLoader(train, batch_size=32, shuffle=True), DataLoader(test, batch_size=64)
model = Digits()
best = ModelCheckpoint(dirpath="checkpoints", monitor="val_accuracy", mode="max")
logger = CSVLogger(".", name="log")
trainer = L.Trainer(max_epochs=3, devices=1, callbacks=[best], logger=logger, enable_progress_bar=False)
trainer.fit(model, train, test)
(result,) = trainer.validate(model, test, ckpt_path="best", verbose=False)
print({name: round(value, 4) for name, value in result.items()})
torch.save(model.state_dict(), sys.argv[1] if len(sys.argv) > 1 else "lightning_digits.pt")
