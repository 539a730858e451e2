"""Catalyst 22.4 with its DDP engine, which starts its processes itself.

python catalyst_ddp.py weights.pt
samestep run --devices cpu:2 catalyst_ddp.py weights.pt
"""

import torch
from catalyst import dl
from task import BATCH, CUDA, datasets, finish, network, optimizer_of
from torch import nn
from torch.utils.data import DataLoader


class Runner(dl.SupervisedRunner):
    """Counts what the accuracy is made of; each process sees its share, and the engine adds up."""

    def get_model(self):
        return network()  # here, not in the first process: on the CPU all processes would share the memory of that one

    def get_optimizer(self, model):
        return optimizer_of(model)

    def on_loader_start(self, runner):
        super().on_loader_start(runner)
        self.counts = torch.zeros(2)

    def on_batch_end(self, runner):
        super().on_batch_end(runner)
        right = (self.batch["logits"].argmax(dim=1) == self.batch["targets"]).sum().item()
        self.counts += torch.tensor([right, self.batch["targets"].size(0)])

    def on_experiment_end(self, runner):
        model = self.engine.unwrap_model(self.model)
        counts = self.engine.gather(self.counts[None].to(self.engine.device)).sum(dim=0)
        if self.engine.is_main_process:
            finish(model, *counts.tolist())
        super().on_experiment_end(runner)


if __name__ == "__main__":
    train, test = datasets()
    loaders = {"train": DataLoader(train, batch_size=BATCH // 2), "valid": DataLoader(test, batch_size=BATCH // 2)}
    model = network()
    group = {"backend": "nccl" if CUDA else "gloo"}
    Runner().train(
        engine=dl.DistributedDataParallelEngine(num_node_workers=2, process_group_kwargs=group),
        model=model,
        criterion=nn.CrossEntropyLoss(),
        optimizer=optimizer_of(model),
        loaders=loaders,
        num_epochs=1,
    )
