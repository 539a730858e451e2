"""Lightning with `precision="bf16-mixed"`, gradients clipped by value, and a learning rate that changes every step."""

import sys

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import StochasticWeightAveraging
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 3))

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        if batch_idx == 0:
            print("logits are", logits.dtype, tuple(logits.shape), "weights are", self.net[0].weight.dtype)
        loss = F.cross_entropy(logits, y)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return {"loss": loss}

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.net(x).float(), y))

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch} loss {self.trainer.callback_metrics['loss_epoch']:.2f}")

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, self.trainer.estimated_stepping_batches)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


pl.seed_everything(0)
x = torch.randn(230, 8)
y = x[:, :3].argmax(dim=1)
train = DataLoader(TensorDataset(x[:133], y[:133]), batch_size=16, shuffle=True)
test = DataLoader(TensorDataset(x[133:], y[133:]), batch_size=16)
model = Net()
trainer = pl.Trainer(
    accelerator="cpu",
    devices=1,
    precision="bf16-mixed",
    max_epochs=3,
    gradient_clip_val=0.05,
    gradient_clip_algorithm="value",
    logger=TensorBoardLogger("logs"),
    log_every_n_steps=4,
    callbacks=[StochasticWeightAveraging(swa_lrs=1e-3, swa_epoch_start=2)],
    enable_progress_bar=False,
)
trainer.fit(model, train, test)
print("steps", trainer.global_step)
torch.save(model.state_dict(), sys.argv[1])
