"""Lightning with `Trainer(strategy="ddp", devices=2)`; the Trainer shards the samplers by itself.

python lightning_ddp.py weights.pt
samestep run --devices cpu:2 lightning_ddp.py weights.pt
"""

import lightning as L
import torch
from task import BATCH, datasets, finish, loss_of, network, optimizer_of
from torch.utils.data import DataLoader


class Digits(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()
        self.counts = torch.zeros(2)

    def training_step(self, batch, index):
        return loss_of(self.net, *batch)

    def test_step(self, batch, index):
        x, y = batch
        self.counts += torch.tensor([(self.net(x).argmax(dim=1) == y).sum().item(), y.size(0)])

    def on_test_epoch_end(self):
        right, seen = self.trainer.strategy.reduce(self.counts.to(self.device), reduce_op="sum").tolist()
        if self.trainer.is_global_zero:
            finish(self.net, right, seen)

    def configure_optimizers(self):
        return optimizer_of(self.net)


if __name__ == "__main__":
    train, test = datasets()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = L.Trainer(strategy="ddp", devices=2, max_epochs=1, enable_model_summary=False, **quiet)
    trainer.fit(model := Digits(), DataLoader(train, batch_size=BATCH // 2))
    trainer.test(model, DataLoader(test, batch_size=BATCH // 2), verbose=False)
