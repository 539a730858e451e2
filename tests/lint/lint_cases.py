"""What the tests of the linter share: linting a text, and the snippets of all families."""

from __future__ import annotations

import re

import examples_devices
import examples_distributed
import examples_shell
import examples_training

from samestep.lint.findings import Finding
from samestep.lint.linting import lint_bytes
from samestep.lint.registry import Language, all_rules

#: Stands before the Python snippets, so that a snippet is as long as its mistake.
HEADER = """\
import os
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
"""
_PYTHON = (examples_devices, examples_training, examples_distributed)


def lint_text(text: str, language: Language = "python", *, optional: bool = False) -> list[Finding]:
    """The findings of all rules (of those that are on by default, unless `optional`)."""
    rules = [rule for rule in all_rules().values() if rule.default or optional]
    return lint_bytes("train.py" if language == "python" else "train.sh", text.encode(), language, rules)


def snippets(kind: str) -> list[tuple[str, Language, str]]:
    """Rule code, language and whole program of each snippet; `kind` is WRONG or RIGHT."""
    found: list[tuple[str, Language, str]] = []
    for module in _PYTHON:
        found += [
            (code, "python", _with_imports(text) + "\n")
            for code, texts in getattr(module, kind).items()
            for text in texts
        ]
    return found + [
        (code, "shell", text + "\n") for code, texts in getattr(examples_shell, kind).items() for text in texts
    ]


def _with_imports(text: str) -> str:
    """The snippet behind those lines of the header that it needs: what a file imports tells the rules something."""
    lines = []
    for line in HEADER.splitlines():
        bound = re.findall(r"\w+", line.rpartition(" as ")[2] if " as " in line else line.partition("import ")[2])
        if any(re.search(rf"\b{name}\b", text) for name in bound):
            lines.append(line + "\n")
    return "".join(lines) + text
