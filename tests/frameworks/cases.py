"""The frameworks' programs: what each needs, and what no two runs of it share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from running import PROGRAMS, TOLERANCE

DIRECTORY = PROGRAMS / "frameworks"
EXAMPLES_DIRECTORY = Path(__file__).parents[2] / "examples"

#: Small programs for every `make test`, with the module that each needs.
SMALL = {"ignite_program": "ignite", "lightning_program": "lightning", "accelerate_program": "accelerate"}


@dataclass(frozen=True)
class Case:
    """One program.

    Attributes:
        distribution: the framework by its name on PyPI.
        module: what is imported.
        tolerance: how far the weights may be off, relative to the largest; more where rounding is coarser.
        forgive: patterns of output that two runs of one process do not share either; times are taken out before.
        noisy: whether it may be off by three times what one process on other kernels is off from itself.
        split: whether its batches reach a module as batches; if not, Samestep says that it computed all on each rank.
    """

    distribution: str
    module: str
    tolerance: float = TOLERANCE
    forgive: tuple[str, ...] = ()
    split: bool = True
    noisy: bool = False


#: Bars that are drawn when some time has passed, and a column of durations, with its width.
_FASTAI = (r"^(Epoch \d+/\d+ :)? ?\|[█-].*\n",)
_SKORCH = (r" \d+\.\d{4}$", r"^-[- ]+$")

CASES = {
    "ignite_supervised": Case("pytorch-ignite", "ignite"),
    "ignite_engines": Case("pytorch-ignite", "ignite"),
    "lightning_trainer": Case("lightning", "lightning"),
    # Its products are rounded to bfloat16 (2^-9): a sum of two blocks is rounded once more than one block is.
    "lightning_bf16": Case("lightning", "lightning", tolerance=2e-2),
    "lightning_cli": Case("lightning", "jsonargparse"),
    "lightning_manual": Case("pytorch-lightning", "pytorch_lightning"),
    "catalyst_supervised": Case("catalyst", "catalyst"),
    "catalyst_runner": Case("catalyst", "catalyst"),
    "accelerate_tracker": Case("accelerate", "accelerate"),
    "hf_bert": Case("transformers", "transformers", forgive=(r"^.*mtime may not be reliable.*\n",)),
    "hf_gpt2": Case("transformers", "transformers"),
    "skorch_classifier": Case("skorch", "skorch", forgive=_SKORCH),
    "fastai_learner": Case("fastai", "fastai", forgive=_FASTAI),
    "poutyne_model": Case("Poutyne", "poutyne"),
    "geometric_graphs": Case("torch-geometric", "torch_geometric", split=False),
    "timm_training": Case("timm", "timm"),
    "torchmetrics_loop": Case("torchmetrics", "torchmetrics"),
    "smp_segmentation": Case("segmentation-models-pytorch", "segmentation_models_pytorch"),
    "monai_segmentation": Case("monai", "monai", split=False),
    "fabric_loop": Case("lightning", "lightning"),
}

EXAMPLES = {
    "ignite_digits": Case("pytorch-ignite", "ignite"),
    "lightning_digits": Case("lightning", "lightning"),
    "catalyst_digits": Case("catalyst", "catalyst"),
    "accelerate_digits": Case("accelerate", "accelerate"),
    "transformers_digits": Case("transformers", "transformers", forgive=(r"^.*mtime may not be reliable.*\n",)),
    "skorch_digits": Case("skorch", "skorch", forgive=_SKORCH),
    "fastai_digits": Case("fastai", "fastai", forgive=_FASTAI),
    "poutyne_digits": Case("Poutyne", "poutyne"),
    # One graph is one sample.
    "geometric_karate": Case("torch-geometric", "torch_geometric", split=False),
    # Batch norm's biases start at zero and are sums that cancel: rounding shows in them.
    "timm_digits": Case("timm", "timm", noisy=True),
    "torchmetrics_digits": Case("torchmetrics", "torchmetrics"),
    "smp_flower": Case("segmentation-models-pytorch", "segmentation_models_pytorch", noisy=True),
    "monai_digits": Case("monai", "monai", noisy=True),
}
