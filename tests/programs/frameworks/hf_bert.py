"""Hugging Face Trainer: a tiny BERT from a configuration, compute_metrics, early stopping, best model, a resume."""

import sys

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

set_seed(0)
config = BertConfig(
    vocab_size=40,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
    num_labels=3,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


class Sentences(torch.utils.data.Dataset):
    def __init__(self, seed, size):
        generator = np.random.default_rng(seed)
        self.rows = [generator.integers(3, 40, generator.integers(4, 13)).tolist() for _ in range(size)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        ids = self.rows[index]
        ids = ids + [0] * (12 - len(ids))
        return {"input_ids": ids, "attention_mask": [int(i > 0) for i in ids], "labels": sum(ids) % 3}


class Report(EarlyStoppingCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        print("step", state.global_step, {k: round(v, 4) for k, v in logs.items() if "loss" in k or "acc" in k})


def compute_metrics(prediction):
    chosen = prediction.predictions.argmax(axis=-1)
    counts = np.bincount(chosen, minlength=3).tolist()
    print("counted", prediction.predictions.shape, counts)
    return {"accuracy": float((chosen == prediction.label_ids).mean())}


def trainer(epochs, stop=None):
    arguments = TrainingArguments(
        "output",
        num_train_epochs=epochs,
        max_steps=stop or -1,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=16,
        learning_rate=1e-2,
        optim="sgd",
        warmup_steps=3,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_steps=3,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        save_total_limit=2,
        report_to=["tensorboard"],
        use_cpu=True,
    )
    print("n_gpu", arguments.n_gpu, "world size", arguments.world_size, "batch", arguments.train_batch_size)
    model = BertForSequenceClassification(config)
    for layer in model.bert.encoder.layer:  # their gradient is zero: left at zero they would hold rounding only
        torch.nn.init.normal_(layer.attention.self.key.bias)
    return Trainer(
        model=model,
        args=arguments,
        train_dataset=Sentences(1, 133),
        eval_dataset=Sentences(2, 97),
        compute_metrics=compute_metrics,
        callbacks=[Report(early_stopping_patience=2)],
    )


first = trainer(3, stop=18)
first.train()
second = trainer(4)
result = second.train(resume_from_checkpoint=True)
print("trained", result.global_step, f"{result.training_loss:.4f}")
print({k: round(v, 4) for k, v in second.evaluate().items() if k in ("eval_loss", "eval_accuracy")})
predicted = second.predict(Sentences(3, 37))
print("predicted", predicted.predictions.argmax(axis=-1).tolist())
second.save_model("final")
torch.save(second.model.state_dict(), sys.argv[1])
