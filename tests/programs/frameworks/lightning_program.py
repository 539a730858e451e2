"""Lightning's Trainer on one device: logged metrics, validation, a CSV log and the best checkpoint."""

import logging
import sys
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", F.cross_entropy(logits, y))
        self.log("val_accuracy", (logits.argmax(dim=1) == y).float().mean())

    def on_train_epoch_end(self):
        values = self.trainer.callback_metrics
        print(f"epoch {self.current_epoch}", " ".join(f"{name} {values[name]:.4f}" for name in sorted(values)))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


L.seed_everything(0, verbose=False)
x = torch.randn(230, 8)
y = x[:, :3].argmax(dim=1)
train = DataLoader(TensorDataset(x[:133], y[:133]), batch_size=16, shuffle=True)
test = DataLoader(TensorDataset(x[133:], y[133:]), batch_size=16)
best = ModelCheckpoint(dirpath="checkpoints", monitor="val_loss", filename="{epoch}")
model = Classifier()
trainer = L.Trainer(
    accelerator="cpu",
    devices=1,
    max_epochs=3,
    gradient_clip_val=1.0,
    log_every_n_steps=1,
    logger=CSVLogger(".", name="log"),
    callbacks=[best],
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, train, test)
(result,) = trainer.validate(model, test, verbose=False)
print({name: round(value, 4) for name, value in result.items()}, "steps", trainer.global_step)
torch.save(model.state_dict(), sys.argv[1])
