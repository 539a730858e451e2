"""Lets torchvision's wheel from PyPI be imported beside the CPU build of torch.

That wheel is linked with CUDA, so its C++ operators do not load, and the import then fails where it describes two of
them (`operator torchvision::nms does not exist`). Declared beforehand, they are known, without a kernel: models,
transforms and weights of torchvision work, `nms` itself does not. `make test-frameworks` puts this module and a `.pth`
file naming it into its virtual environment; nothing of it is needed where torch is the usual build for GPUs.
"""

import sys


class _Declares:
    """Declares the operators when torchvision is about to be imported."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            if torch.version.cuda is None:
                for name in ("nms", "qnms"):
                    schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                    torch.library.define(f"torchvision::{name}", schema)
        return None


sys.meta_path.insert(0, _Declares())
