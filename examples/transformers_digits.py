"""The Hugging Face Trainer on scikit-learn's handwritten digits: a tiny vision transformer made from a configuration.

An ordinary single-process program:    python examples/transformers_digits.py [weights.pt]
"""

import sys

import torch
from sklearn.datasets import load_digits
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

set_seed(0)
digits = load_digits()
images = torch.tensor(digits.images / 16.0, dtype=torch.float32)[:, None]
samples = [{"pixel_values": x, "labels": int(y)} for x, y in zip(images, digits.target, strict=True)]
config = ViTConfig(
    image_size=8,
    patch_size=2,
    num_channels=1,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    num_labels=10,
    qkv_bias=False,
)


def compute_metrics(prediction):
    return {"accuracy": float((prediction.predictions.argmax(axis=-1) == prediction.label_ids).mean())}


arguments = TrainingArguments(
    "output",
    num_train_epochs=2,
    per_device_train_batch_size=32,
    per_device_eval_batch_size=64,
    learning_rate=0.1,
    optim="sgd",
    eval_strategy="epoch",
    save_strategy="epoch",
    logging_steps=20,
    report_to="none",
)
trainer = Trainer(
    model=ViTForImageClassification(config),
    args=arguments,
    train_dataset=samples[:1397],
    eval_dataset=samples[1397:],
    compute_metrics=compute_metrics,
)
trainer.train()
result = trainer.evaluate()
print(f"loss {result['eval_loss']:.4f} accuracy {result['eval_accuracy']:.4f}")
torch.save(trainer.model.state_dict(), sys.argv[1] if len(sys.argv) > 1 else "transformers_digits.pt")
