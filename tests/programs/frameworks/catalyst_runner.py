"""Catalyst: a runner written by hand with two networks and meters, resumed from its last checkpoint."""

import sys

import torch
import torch.nn.functional as F
from catalyst import dl, metrics, utils
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Autoencoder(dl.Runner):
    def on_loader_start(self, runner):
        super().on_loader_start(runner)
        names = ["loss", "reconstruction", "accuracy"]
        self.meters = {name: metrics.AdditiveMetric(compute_on_call=False) for name in names}

    def predict_batch(self, batch):
        return self.model["decoder"](self.model["encoder"](batch[0]))

    def handle_batch(self, batch):
        x, y = batch
        code = self.model["encoder"](x)
        back, logits = self.model["decoder"](code), self.model["head"](code)
        reconstruction, classification = F.mse_loss(back, x), F.cross_entropy(logits, y)
        loss = reconstruction + 0.5 * classification + 1e-3 * code.abs().mean()
        accuracy = (logits.argmax(dim=1) == y).float().mean()
        self.batch_metrics.update(loss=loss, reconstruction=reconstruction, accuracy=accuracy)
        for name, meter in self.meters.items():
            meter.update(self.batch_metrics[name].item(), self.batch_size)
        if self.is_train_loader:
            self.engine.backward(loss)
            for optimizer in self.optimizer.values():
                optimizer.step()
                optimizer.zero_grad()

    def on_loader_end(self, runner):
        for name, meter in self.meters.items():
            self.loader_metrics[name] = meter.compute()[0]
        print(self.loader_key, self.loader_batch_len, "batches", self.loader_sample_step, "samples")
        super().on_loader_end(runner)


def networks():
    encoder = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    model = nn.ModuleDict({"encoder": encoder, "decoder": nn.Linear(4, 8), "head": nn.Linear(4, 3)})
    optimizer = {name: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5) for name, net in model.items()}
    return model, optimizer


utils.set_global_seed(3)
x = torch.randn(230, 8)
y = x[:, :3].argmax(dim=1)
train = DataLoader(TensorDataset(x[:133], y[:133]), batch_size=16, shuffle=True)
valid = DataLoader(TensorDataset(x[133:], y[133:]), batch_size=16)
for start, epochs in ((None, 2), ("logs0/model.last.pth", 2)):
    model, optimizer = networks()
    runner = Autoencoder()
    logdir = "logs1" if start else "logs0"
    saver = dl.CheckpointCallback(
        logdir,
        loader_key="valid",
        metric_key="loss",
        minimize=True,
        mode="model",
        resume_model=start,
    )
    runner.train(
        model=model,
        optimizer=optimizer,
        loaders={"train": train, "valid": valid},
        num_epochs=epochs,
        callbacks=[saver, dl.TqdmCallback()],
        loggers={"csv": dl.CSVLogger(logdir)},
        valid_loader="valid",
        valid_metric="loss",
        minimize_valid_metric=True,
        verbose=False,
        seed=11,
    )
torch.save(model.state_dict(), sys.argv[1])
