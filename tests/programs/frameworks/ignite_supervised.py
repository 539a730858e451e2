"""Ignite: supervised trainer and evaluator, metrics, checkpoints, early stopping, bar, TensorBoard, and a resume."""

import sys

import torch
from ignite.contrib.handlers import ProgressBar
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, EarlyStopping, EpochOutputStore, ModelCheckpoint, global_step_from_engine
from ignite.handlers.tensorboard_logger import OutputHandler, TensorboardLogger
from ignite.metrics import Accuracy, ConfusionMatrix, Loss, Precision, Recall, RunningAverage
from ignite.utils import manual_seed, setup_logger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

manual_seed(0)
x = torch.randn(230, 8)
y = x[:, :3].argmax(dim=1)
train = DataLoader(TensorDataset(x[:133], y[:133]), batch_size=16, shuffle=True)
test = DataLoader(TensorDataset(x[133:], y[133:]), batch_size=16)
criterion = nn.CrossEntropyLoss()


def build():
    model = nn.Sequential(nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = create_supervised_trainer(model, optimizer, criterion, device="cpu")
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: scheduler.step())
    RunningAverage(output_transform=lambda loss: loss).attach(trainer, "smoothed")
    ProgressBar().attach(trainer, ["smoothed"])

    seen = []
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda e: seen.append(round(e.state.batch[0].sum().item(), 3))
    )

    precision, recall = Precision(average=False), Recall(average=False)
    metrics = {
        "accuracy": Accuracy(),
        "loss": Loss(criterion),
        "confusion": ConfusionMatrix(num_classes=3),
        "precision": precision,
        "recall": recall,
        "f1": (precision * recall * 2 / (precision + recall)).mean(),
    }
    evaluator = create_supervised_evaluator(model, metrics=metrics, device="cpu")
    evaluator.logger = setup_logger("evaluator")
    outputs = EpochOutputStore()
    outputs.attach(evaluator, "outputs")

    @trainer.on(Events.EPOCH_COMPLETED)
    def report(engine):
        print("batches", seen)
        seen.clear()
        print(f"epoch {engine.state.epoch} loss {engine.state.output:.4f} lr {scheduler.get_last_lr()[0]:.4f}")
        evaluator.run(test)
        values = evaluator.state.metrics
        print(f"test accuracy {values['accuracy']:.4f} loss {values['loss']:.4f} f1 {values['f1']:.4f}")
        print("precision", [round(value, 3) for value in values["precision"].tolist()])
        print("recall", [round(value, 3) for value in values["recall"].tolist()])
        print(values["confusion"].tolist())
        rows = sum(len(predicted) for predicted, _ in evaluator.state.outputs)
        print("outputs of", rows, "samples in", len(evaluator.state.outputs), "batches")

    def score(engine):
        return -engine.state.metrics["loss"]

    best = ModelCheckpoint(
        "best",
        "net",
        n_saved=2,
        score_function=score,
        score_name="val",
        global_step_transform=global_step_from_engine(trainer),
        require_empty=False,
    )
    evaluator.add_event_handler(Events.COMPLETED, best, {"model": model})
    evaluator.add_event_handler(Events.COMPLETED, EarlyStopping(patience=2, score_function=score, trainer=trainer))
    everything = {"trainer": trainer, "model": model, "optimizer": optimizer, "scheduler": scheduler}
    last = ModelCheckpoint("last", "training", n_saved=1, require_empty=False)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, last, everything)

    logger = TensorboardLogger(log_dir="tensorboard")
    logger.attach(
        trainer, OutputHandler("train", output_transform=lambda loss: {"loss": loss}), Events.ITERATION_COMPLETED
    )
    step = global_step_from_engine(trainer)
    names = ["accuracy", "loss"]
    logger.attach(evaluator, OutputHandler("test", metric_names=names, global_step_transform=step), Events.COMPLETED)
    trainer.add_event_handler(Events.COMPLETED, lambda: logger.close())
    return model, trainer, everything, last


model, trainer, everything, last = build()
trainer.run(train, max_epochs=2)
print("saved", last.last_checkpoint)

model, trainer, everything, _ = build()
Checkpoint.load_objects(everything, torch.load(last.last_checkpoint))
print("resumed at epoch", trainer.state.epoch)
trainer.run(train, max_epochs=5)
print("ended at epoch", trainer.state.epoch)
torch.save(model.state_dict(), sys.argv[1])
