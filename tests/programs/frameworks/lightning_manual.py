"""`pytorch_lightning` with `devices="auto"`: manual optimization of two networks, an accumulated and clipped step."""

import sys

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Gan(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
        self.critic = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def training_step(self, batch, batch_idx):
        (real,) = batch
        to_generate, to_judge = self.optimizers()
        noise = torch.randn(real.shape[0], 4, device=self.device).type_as(real)
        ones, zeros = torch.ones(real.size(0), 1), torch.zeros(real.size(0), 1)

        self.toggle_optimizer(to_generate)
        fake = self.generator(noise)
        loss = F.binary_cross_entropy_with_logits(self.critic(fake), ones)
        self.log("generator", loss, prog_bar=True, on_step=True, on_epoch=True)
        to_generate.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(to_generate, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        to_generate.step()
        self.untoggle_optimizer(to_generate)

        self.toggle_optimizer(to_judge)
        right = F.binary_cross_entropy_with_logits(self.critic(real), ones)
        wrong = F.binary_cross_entropy_with_logits(self.critic(self.generator(noise).detach()), zeros)
        loss = (right + wrong) / 2
        self.log_dict({"critic": loss, "rows": float(real.shape[0])}, on_step=True, on_epoch=True)
        self.manual_backward(loss / 2)
        if batch_idx % 2 == 1 or self.trainer.is_last_batch:
            to_judge.step()
            to_judge.zero_grad()
        self.untoggle_optimizer(to_judge)

    def on_train_epoch_end(self):
        for scheduler in self.lr_schedulers():
            scheduler.step()

    def validation_step(self, batch, batch_idx):
        (real,) = batch
        self.log("spread", self.critic(real).std(unbiased=False))
        return {"mean": real.mean()}

    def configure_optimizers(self):
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.5) for net in (self.generator, self.critic)]
        return optimizers, [torch.optim.lr_scheduler.ExponentialLR(o, 0.8) for o in optimizers]


class Report(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx % 4 == 0:
            values = trainer.logged_metrics
            print(f"batch {batch_idx}", {name: round(float(v), 4) for name, v in sorted(values.items())})

    def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx=0):
        print(f"validation {batch_idx} mean {outputs['mean']:.4f}")


pl.seed_everything(7, workers=True)
real = torch.randn(143, 6) * torch.tensor([1.0, 2.0, 0.5, 1.0, 0.1, 3.0])
train = DataLoader(TensorDataset(real[:103]), batch_size=12, shuffle=True)
valid = DataLoader(TensorDataset(real[103:]), batch_size=12)
trainer = pl.Trainer(
    accelerator="auto",
    devices="auto",
    max_epochs=3,
    val_check_interval=0.5,
    log_every_n_steps=1,
    logger=CSVLogger("logs"),
    deterministic=True,
    callbacks=[Report(), ModelCheckpoint(monitor="spread", mode="max", save_top_k=-1, filename="{epoch}-{step}")],
    num_sanity_val_steps=2,
)
print("devices", trainer.num_devices, "world size", trainer.world_size, "strategy", type(trainer.strategy).__name__)
model = Gan()
trainer.fit(model, train, valid)
trainer.save_checkpoint("end.ckpt")
torch.save(model.state_dict(), sys.argv[1])
