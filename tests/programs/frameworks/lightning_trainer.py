"""Lightning's Trainer: a DataModule, torchmetrics, loggers, callbacks, accumulation, a bar, and a resumed run."""

import sys

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import (
    EarlyStopping,
    EMAWeightAveraging,
    LearningRateMonitor,
    ModelCheckpoint,
    TQDMProgressBar,
)
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score


class Data(L.LightningDataModule):
    def __init__(self, batch_size=16):
        super().__init__()
        self.save_hyperparameters()

    def prepare_data(self):
        print("preparing")

    def setup(self, stage):
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(300, 8, generator=generator)
        y = x[:, :3].argmax(dim=1)
        self.parts = [TensorDataset(x[a:b], y[a:b]) for a, b in ((0, 139), (139, 220), (220, 300))]

    def train_dataloader(self):
        return DataLoader(self.parts[0], batch_size=self.hparams.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.parts[1], batch_size=self.hparams.batch_size)

    def test_dataloader(self):
        return DataLoader(self.parts[2], batch_size=self.hparams.batch_size)

    def predict_dataloader(self):
        return self.test_dataloader()


class Classifier(L.LightningModule):
    def __init__(self, hidden=24, lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(8, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 3))
        scores = MetricCollection({"accuracy": MulticlassAccuracy(3), "f1": MulticlassF1Score(3)})
        self.train_scores = scores.clone(prefix="train_")
        self.val_scores = scores.clone(prefix="val_")
        self.test_auroc = MulticlassAUROC(3)
        self.seen = []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.seen.append(round(x.sum().item(), 3))
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log_dict(self.train_scores(logits, y), on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch} step {self.global_step} batches", self.seen)
        self.seen.clear()

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.val_scores.update(logits, y)
        self.log("val_loss", F.cross_entropy(logits, y), prog_bar=True, sync_dist=True)
        self.log("val_right", (logits.argmax(dim=1) == y).float().sum(), reduce_fx="sum", sync_dist=True)

    def on_validation_epoch_end(self):
        self.log_dict(self.val_scores.compute())
        self.val_scores.reset()

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.test_auroc(self(x).softmax(dim=1), y)
        self.log("test_auroc", self.test_auroc)
        self.log("test_loss", F.cross_entropy(self(x), y))

    def predict_step(self, batch, batch_idx):
        x, _ = batch
        return self(x).argmax(dim=1)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9, weight_decay=1e-4)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "epoch"}}


def trainer(epochs, log):
    return L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=epochs,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        log_every_n_steps=2,
        logger=[CSVLogger(".", name="csv", version=log), TensorBoardLogger(".", name="board", version=log)],
        callbacks=[
            ModelCheckpoint(dirpath=f"checkpoints/{log}", monitor="val_loss", save_top_k=2, save_last=True),
            EarlyStopping("val_loss", patience=2, min_delta=1e-3, verbose=True),
            LearningRateMonitor(logging_interval="step"),
            EMAWeightAveraging(decay=0.9),
            TQDMProgressBar(refresh_rate=3),
        ],
    )


def show(title, values):
    print(title, {name: round(float(value), 4) for name, value in sorted(values.items())})


L.seed_everything(0)
data, model = Data(), Classifier()
first = trainer(2, "first")
first.fit(model, data)
show("first", first.callback_metrics)

model = Classifier()
second = trainer(4, "second")
second.fit(model, data, ckpt_path="checkpoints/first/last.ckpt")
show("second", second.callback_metrics)
print("stopped at epoch", second.current_epoch, "step", second.global_step)
(result,) = second.validate(model, data)
show("validation", result)
(result,) = second.test(model, data, ckpt_path="best")
show("test", result)
predicted = torch.cat(second.predict(model, data))
print("predicted", predicted.bincount(minlength=3).tolist(), predicted.tolist())
best = Classifier.load_from_checkpoint(second.checkpoint_callback.best_model_path)
torch.save({"last": model.state_dict(), "best": best.state_dict()}, sys.argv[1])
