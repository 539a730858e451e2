"""What is in the files that a run leaves, read so that two runs can be compared by content.

Text is text, without the times in it. Checkpoints are nests of tensors and numbers. TensorBoard's events are scalars by
name and step. Anything else counts by its name only.
"""

from __future__ import annotations

import math
import pickle
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

_TEXT = {".csv", ".json", ".jsonl", ".txt", ".log", ".yaml", ".yml", ".md", ".tsv"}
_TORCH = {".pt", ".pth", ".ckpt", ".bin"}

_NUMBER = r"(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|\?|inf|nan)"
#: What no two runs share: times of day, durations, speeds, addresses, and how much space aligns them in columns.
#: Frames of a progress bar overwrite each other.
_TIMES = [
    (re.compile(r"[^\n]*\r(?!\n)"), ""),
    (re.compile(r"\x1b\[[0-9;?]*[A-Za-z]"), ""),
    (re.compile(r"\d{4}-\d\d-\d\d([ T]|$)(\d\d:\d\d:\d\d([.,]\d+)?)?"), "<date>"),
    (re.compile(r"\b\d{1,3}:\d\d(:\d\d)?(\.\d+)?\b"), "<time>"),
    (re.compile(r"ETA: *(\d+[dhm] *)*[\d.]+s"), "ETA: <time>"),
    (re.compile(rf" *{_NUMBER} ?(it/s|s/it|batch/s|batches/s|samples/s|ms|secs?|seconds|s)\b"), " <time>"),
    (re.compile(r" +$", re.M), ""),
    (re.compile(r" {2,}"), " "),
    (re.compile(r"\b0x[0-9a-f]{6,}\b"), "<address>"),
    (re.compile(rf"(\"dur\": ){_NUMBER}"), r"\1<time>"),
    (re.compile(rf"(runtime|(?:samples|steps|tokens)_per_second)(['\"]?\s*[:=,]\s*['\"]?){_NUMBER}"), r"\1\2<time>"),
]


def without_times(text: str) -> str:
    """A text as it ends up on a terminal, with every time, duration and speed replaced by a mark.

    Example:
        >>> without_times("train:  50%|█  | 1/2 [00:01<00:01, 1.0it/s]\\rtrain: 100%|██| 2/2 [00:02<00:00, 1.0it/s]")
        'train: 100%|██| 2/2 [<time><<time>, <time>]'
    """
    for pattern, mark in _TIMES:
        text = pattern.sub(mark, text)
    return text


def content_of(path: Path, directory: Path) -> Any:
    """What a file holds: a string, or tensors, numbers and strings by name; None if only its own name counts.

    `directory` is where the program ran: two runs have different ones, so its name is taken out.
    """
    content = _content(path)
    return _moved(content, str(directory))


def _moved(content: Any, directory: str) -> Any:
    if isinstance(content, str):
        return content.replace(directory, "<here>")
    if isinstance(content, dict):
        return {_moved(key, directory): _moved(value, directory) for key, value in content.items()}
    return content


def _content(path: Path) -> Any:
    if path.suffix in (".csv", ".tsv"):
        return without_times(_without_time_columns(path.read_text(), "," if path.suffix == ".csv" else "\t"))
    if path.suffix in _TEXT:
        return without_times(path.read_text())
    if ".tfevents." in path.name:
        return _scalars(path)
    if path.suffix in _TORCH:
        return _leaves(torch.load(path, weights_only=False, map_location="cpu", pickle_module=_Lenient))
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return _leaves(load_file(path))
    if path.suffix == ".npz" or path.suffix == ".npy":
        return _leaves(_numpy(path))
    return None


def _without_time_columns(text: str, separator: str) -> str:
    rows = [line.split(separator) for line in text.splitlines()]
    timed = {i for i, name in enumerate(rows[0] if rows else []) if name.strip().lower() in ("time", "dur", "duration")}
    return "\n".join(separator.join("<time>" if i in timed else v for i, v in enumerate(row)) for row in rows)


class _Placeholder:
    """Stands for an object whose class is not here (defined in the program's main module)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __call__(self, *args: Any, **kwargs: Any) -> _Placeholder:
        return self


class _Lenient:
    """A pickle module for `torch.load` that does not need the classes of the program that saved."""

    __name__ = "lenient"
    load = pickle.load
    dump = pickle.dump

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            try:
                return super().find_class(module, name)
            except (AttributeError, ImportError):
                return _Placeholder


def _numpy(path: Path) -> Any:
    import numpy as np

    loaded = np.load(path, allow_pickle=True)
    return dict(loaded) if path.suffix == ".npz" else {"": loaded}


def _scalars(path: Path) -> dict[str, Any]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    found = {f"{tag}@{e.step}": e.value for tag in tags["scalars"] for e in events.Scalars(tag)}
    return {name: value for name, value in found.items() if not _is_time(name)}


#: Entries of checkpoints and events that hold a time or a place, not a result.
_NO_RESULT = re.compile(r"(time|runtime|_per_second|uuid|hash|hostname|pid|elapsed)\b", re.I)


def _is_time(name: str) -> bool:
    return _NO_RESULT.search(name) is not None


def _leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Tensors, numbers and strings of a nest by their place; objects are looked through by their attributes."""
    found: dict[str, Any] = {}
    _collect(value, path, found, 0)
    return found


def _collect(value: Any, path: str, found: dict[str, Any], depth: int) -> None:
    numpy = sys.modules.get("numpy")
    if depth > 12:
        return
    if isinstance(value, torch.Tensor):
        found[path] = value.detach()
    elif numpy is not None and isinstance(value, numpy.ndarray):
        if value.dtype.kind in "biuf":
            found[path] = torch.as_tensor(value.copy())
    elif isinstance(value, (bool, int, float)):
        if not _is_time(path):
            found[path] = value
    elif isinstance(value, str):
        if not _is_time(path):
            found[path] = without_times(value)
    elif isinstance(value, Mapping):
        for key, child in value.items():
            _collect(child, f"{path}/{key}", found, depth + 1)
    elif isinstance(value, (list, tuple)):
        for i, child in enumerate(value):
            _collect(child, f"{path}/{i}", found, depth + 1)
    elif isinstance(value, torch.nn.Module):
        _collect(dict(value.state_dict()), path, found, depth + 1)
    elif isinstance(value, _Placeholder):
        _collect(getattr(value, "state", None), path, found, depth + 1)


def differing(truth: Any, other: Any, same_text: Callable[[str, str], bool], tolerance: float) -> str:
    """Why two contents are not the same; empty if they are."""
    if isinstance(truth, dict) and isinstance(other, dict):
        if list(truth) != list(other):
            return f"other entries: {sorted(truth.keys() ^ other.keys()) or 'in another order'}"
        least = _NOISE * max(map(_largest, truth.values()), default=0.0)
        wrong = [key for key in truth if not _same(truth[key], other[key], same_text, tolerance, least)]
        return "\n".join(f"{key}: {truth[key]!r} → {other[key]!r}"[:400] for key in wrong[:10])
    if isinstance(truth, str) and isinstance(other, str):
        return "" if same_text(truth, other) else "other text"
    return "" if type(truth) is type(other) else "another kind of content"


#: A tensor this much smaller than the largest in its file may be rounding noise as a whole: the momentum of a bias
#: before batch norm, whose gradient is zero.
_NOISE = 0.1


def _largest(value: Any) -> float:
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point or value.numel() == 0:
        return 0.0
    largest = float(value.abs().max())
    return largest if math.isfinite(largest) else 0.0


def _same(a: Any, b: Any, same_text: Callable[[str, str], bool], tolerance: float, least: float) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        if a.is_complex():
            a, b = torch.view_as_real(a), torch.view_as_real(b)
        if not a.dtype.is_floating_point:
            return torch.equal(a, b)
        scale = max(_largest(a), min(least, 1.0))
        return torch.allclose(a.double(), b.double(), rtol=0.0, atol=tolerance * scale, equal_nan=True)
    if isinstance(a, float) and isinstance(b, float):
        return a == b or a != a != b != b or abs(a - b) <= tolerance * max(abs(a), 1e-2)
    if isinstance(a, str) and isinstance(b, str):
        return same_text(a, b)
    return type(a) is type(b) and bool(a == b)
