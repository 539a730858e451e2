from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_machine import Machine, build, in_process, torch_package

from samestep.devices import inventory, locks
from samestep.devices.missing import TorchBuild


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-ins for NVIDIA's libraries, compiled once."""
    return build(tmp_path_factory.mktemp("nvidia"))


@pytest.fixture
def elsewhere(library: Path, tmp_path: Path) -> Machine:
    """A machine for other processes: PyTorch there is a CUDA build, in name."""
    return Machine(tmp_path, library, torch_package(tmp_path / "torch-cuda", cuda="12.6"))


@pytest.fixture
def machine(elsewhere: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """The same machine for this process."""
    monkeypatch.setattr(inventory, "torch_build", lambda: TorchBuild("2.13.0", cuda="12.6"))
    yield from in_process(elsewhere, monkeypatch)
    locks.release(list(locks._held))
