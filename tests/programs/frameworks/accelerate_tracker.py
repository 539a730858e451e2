"""Accelerate: a tracker, gather_for_metrics, save_state and load_state in the middle of an epoch, a local bar."""

import sys

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm

set_seed(0)
project = ProjectConfiguration(project_dir="project", automatic_checkpoint_naming=True, total_limit=2)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, log_with="tensorboard", project_config=project)
accelerator.init_trackers("run", config={"lr": 0.1, "batch_size": 16})
x = torch.randn(230, 8)
y = x[:, :3].argmax(dim=1)
train = DataLoader(TensorDataset(x[:133], y[:133]), batch_size=16, shuffle=True)
test = DataLoader(TensorDataset(x[133:], y[133:]), batch_size=16)
model = nn.Sequential(nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=20)
model, optimizer, train, test, scheduler = accelerator.prepare(model, optimizer, train, test, scheduler)
print(accelerator.state.num_processes, accelerator.device, accelerator.distributed_type, accelerator.is_main_process)


def evaluate(epoch):
    model.eval()
    correct, losses, rows = 0, [], 0
    for inputs, targets in test:
        with torch.no_grad():
            logits = model(inputs)
            loss = F.cross_entropy(logits, targets)
        losses.append(accelerator.gather_for_metrics(loss.repeat(len(targets))))
        predictions, targets = accelerator.gather_for_metrics((logits.argmax(dim=-1), targets))
        correct += accelerator.reduce((predictions == targets).sum(), "sum").item()
        rows += len(targets)
    mean = torch.cat(losses).mean()
    accelerator.print(f"epoch {epoch} test loss {mean:.4f} right {correct}/{rows} of {len(torch.cat(losses))}")
    accelerator.log({"test_loss": mean, "accuracy": correct / rows}, step=epoch)


def run(epochs, skip=0, stop=None):
    bar = tqdm(range(len(train) * len(epochs)), disable=not accelerator.is_local_main_process)
    for epoch in epochs:
        model.train()
        batches = accelerator.skip_first_batches(train, skip) if skip and epoch == epochs[0] else train
        for i, (inputs, targets) in enumerate(batches):
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            bar.update(1)
            accelerator.print(f"{epoch}.{i} rows {len(inputs)} sum {inputs.sum():.3f} loss {loss:.4f}")
            if accelerator.sync_gradients:
                accelerator.log({"loss": loss.item(), "norm": norm}, step=epoch * len(train) + i)
            if stop == (epoch, i):
                accelerator.save_state()
                return
        evaluate(epoch)


run([0, 1], stop=(1, 3))
state = torch.random.get_rng_state()
accelerator.load_state("project/checkpoints/checkpoint_0")
run([1, 2], skip=4)
accelerator.save_state()
accelerator.end_training()
accelerator.save_model(model, "model")
accelerator.save(accelerator.get_state_dict(model), sys.argv[1])
