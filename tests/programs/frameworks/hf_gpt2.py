"""Hugging Face Trainer: a tiny GPT-2, padded by a collator, losses over the tokens of an accumulated batch."""

import sys

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(1)
generator = np.random.default_rng(0)
sentences = [generator.integers(1, 30, generator.integers(3, 15)).tolist() for _ in range(150)]


def collate(samples):
    longest = max(map(len, samples))
    ids = torch.tensor([s + [0] * (longest - len(s)) for s in samples])
    mask = (ids > 0).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


class Seen(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if num_items_in_batch is not None and not return_outputs:
            print("tokens", int(num_items_in_batch), "shape", tuple(inputs["input_ids"].shape), f"loss {loss:.4f}")
        return loss


config = GPT2Config(
    vocab_size=30,
    n_positions=16,
    n_embd=16,
    n_layer=2,
    n_head=2,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    bos_token_id=0,
    eos_token_id=0,
)
arguments = TrainingArguments(
    "output",
    num_train_epochs=2,
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    gradient_accumulation_steps=2,
    learning_rate=5e-2,
    lr_scheduler_type="cosine",
    optim="sgd",
    max_grad_norm=0.5,
    weight_decay=0.01,
    eval_strategy="steps",
    eval_steps=5,
    logging_steps=1,
    save_strategy="steps",
    save_steps=5,
    report_to="none",
    remove_unused_columns=False,
    use_cpu=True,
    disable_tqdm=False,
)
trainer = Seen(
    model=GPT2LMHeadModel(config),
    args=arguments,
    train_dataset=sentences[:110],
    eval_dataset=sentences[110:],
    data_collator=collate,
)
trainer.train()
for entry in trainer.state.log_history:
    print(
        {k: round(v, 4) for k, v in entry.items() if k in ("loss", "grad_norm", "learning_rate", "eval_loss", "epoch")}
    )
model = trainer.model.eval()
print("continued", model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=6, do_sample=False).tolist())
torch.save(model.state_dict(), sys.argv[1])
