"""LightningCLI: fit, then test, from arguments; a link between data and model, a configuration file that is saved."""

import sys

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Data(LightningDataModule):
    def __init__(self, features: int = 8, batch_size: int = 16):
        super().__init__()
        x = torch.randn(230, features, generator=torch.Generator().manual_seed(0))
        y = x[:, :3].sum(dim=1, keepdim=True).sin()
        self.parts = TensorDataset(x[:133], y[:133]), TensorDataset(x[133:], y[133:])
        self.batch_size = batch_size

    def train_dataloader(self):
        return DataLoader(self.parts[0], batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.parts[1], batch_size=self.batch_size)

    test_dataloader = val_dataloader


class Regression(LightningModule):
    def __init__(self, features: int = 8, hidden: int = 16):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def training_step(self, batch, batch_idx):
        loss = F.mse_loss(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.mse_loss(self.net(batch[0]), batch[1]), prog_bar=True)

    def test_step(self, batch, batch_idx):
        self.log("test_loss", F.mse_loss(self.net(batch[0]), batch[1]))


class Cli(LightningCLI):
    def add_arguments_to_parser(self, parser):
        parser.link_arguments("data.features", "model.features")


common = ["--trainer.accelerator=cpu", "--trainer.devices=1", "--trainer.default_root_dir=runs", "--seed_everything=3"]
if __name__ == "__main__":
    fit = ["fit", *common, "--trainer.max_epochs=3", "--model.hidden=24", "--data.batch_size=12", "--optimizer=SGD"]
    fit += [
        "--optimizer.lr=0.05",
        "--optimizer.momentum=0.9",
        "--lr_scheduler=ExponentialLR",
        "--lr_scheduler.gamma=0.5",
    ]
    cli = Cli(Regression, Data, args=fit)
    best = cli.trainer.checkpoint_callback.best_model_path
    test = Cli(Regression, Data, args=["test", *common, "--model.hidden=24", f"--ckpt_path={best}"])
    print({name: round(value.item(), 4) for name, value in test.trainer.callback_metrics.items()})
    torch.save(cli.model.state_dict(), sys.argv[1])
