"""Trackers leave nothing behind on ranks other than main."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from replica_harness import Step, orders, play

from samestep.replica import trackers


def log_to_tensorboard() -> list[Step]:
    from torch.utils.tensorboard import SummaryWriter

    def run() -> int:
        with SummaryWriter("runs/experiment") as writer:
            for step in range(3):
                writer.add_scalar("loss", 1.0 / (step + 1), step)
            writer.add_text("note", "text")
            writer.flush()
        return len([name for name in os.listdir("runs/experiment") if "tfevents" in name])

    def read() -> list[float]:
        from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
            EventAccumulator,
        )

        events = EventAccumulator("runs/experiment")
        events.Reload()
        return [each.value for each in events.Scalars("loss")]

    return [run, read, lambda: os.listdir("runs")]


@pytest.mark.parametrize("order", ["main first", "main last", "in turn"])
def test_tensorboard_writes_once(order: str) -> None:
    pytest.importorskip("tensorboard")
    steps = log_to_tensorboard()
    answers, found = play(steps, lambda: None, orders(len(steps), 3)[order], 3)
    assert answers[0] == [1, pytest.approx([1.0, 0.5, 1 / 3]), ["experiment"]]
    assert answers[1] == answers[2] == answers[0]
    assert len([name for name in found if "tfevents" in name]) == 1


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Path]:
    trackers.install_replica(tmp_path)
    try:
        yield tmp_path
    finally:
        trackers.uninstall()


def test_switches_are_set_and_taken_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("NEPTUNE_MODE", raising=False)
    before = list(sys.meta_path)
    trackers.install_replica(tmp_path)
    trackers.install_replica(tmp_path)
    assert os.environ["WANDB_MODE"] == "disabled"
    assert os.environ["NEPTUNE_MODE"] == "debug"
    assert os.environ["MLFLOW_TRACKING_URI"].startswith(f"file:{tmp_path}")
    trackers.uninstall()
    assert os.environ["WANDB_MODE"] == "online"
    assert "NEPTUNE_MODE" not in os.environ
    assert sys.meta_path == before


FAKES = {
    "wandb": "def init(**options):\n    return options\n",
    "visdom": "class Visdom:\n    def __init__(self, **options):\n        self.options = options\n",
    "comet_ml": "class Experiment:\n    def __init__(self, **options):\n        self.options = options\n",
    "mlflow": "used = []\ndef set_tracking_uri(uri):\n    used.append(uri)\n",
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stand-ins with the trackers' names and signatures: none of them is installed here."""
    for name, text in FAKES.items():
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in FAKES:
        sys.modules.pop(name, None)


def test_trackers_imported_by_the_script_are_off(modules: None, installed: Path) -> None:
    import importlib

    found: dict[str, Any] = {name: importlib.import_module(name) for name in FAKES}
    assert found["wandb"].init(project="p", mode="online") == {"project": "p", "mode": "disabled"}
    assert found["visdom"].Visdom(port=1).options == {"port": 1, "send": False, "use_incoming_socket": False}
    assert found["comet_ml"].Experiment(api_key="k").options == {"api_key": "k", "disabled": True}
    found["mlflow"].set_tracking_uri("http://server")
    assert found["mlflow"].used == []
