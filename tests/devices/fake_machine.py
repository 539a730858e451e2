"""Machines with GPUs that are not there: a stand-in for NVIDIA's library, asked through the real `nvidia-ml-py`."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import samestep.errors

HERE = Path(__file__).parent
SOURCE = Path(samestep.errors.__file__).parent.parent
GIB = 1 << 30
TIMEOUT_S = 120.0


def gpu(index: int, model: str = "H200", gib: float = 140, used: float = 0.5, **more: Any) -> dict[str, Any]:
    """One GPU as the stand-in's file describes it; memory in GiB. Its UUID begins with `GPU-` and its number twice."""
    return {
        "name": f"NVIDIA {model}",
        "uuid": uuid(index),
        "pci": f"00000000:{index + 1:02X}:00.0",
        "total": int(gib * GIB),
        "used": int(used * GIB),
        "busy": 0,
        "temperature": 35,
        "capability": [9, 0],
        "processes": [],
        "minor": index,
        **more,
    }


def uuid(index: int) -> str:
    """The UUID of GPU `index`."""
    return f"GPU-{index:02x}{index:02x}0000-1111-2222-3333-44444444{index:04x}"


def mig(index: int, slices: int, model: str = "A100", **more: Any) -> dict[str, Any]:
    """A GPU that is divided into slices of 10 GiB."""
    pieces = [
        {
            "uuid": slice_uuid(index, number),
            "name": f"NVIDIA {model} MIG 1g.10gb",
            "total": 10 * GIB,
            "used": 0,
            "gi": number + 7,
            "ci": 0,
        }
        for number in range(slices)
    ]
    return gpu(index, model, 80, slices=pieces, **more)


def slice_uuid(index: int, number: int) -> str:
    """The UUID of a slice."""
    return f"MIG-{index:02x}{number:02x}0000-aaaa-bbbb-cccc-dddddddddddd"


def torch_package(folder: Path, **built_for: str) -> Path:
    """A folder with a package `torch` of which only `version.py` is right: for what is asked without importing it."""
    package = folder / "torch"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("raise SystemExit('torch was imported')\n")
    lines = [f"{name} = {built_for.get(name)!r}\n" for name in ("cuda", "hip", "xpu")]
    (package / "version.py").write_text("__version__ = '2.13.0'\n" + "".join(lines))
    return folder


@dataclass
class Machine:
    """What the stand-in answers with, and a way to run `samestep` on it."""

    folder: Path
    library: Path
    torch: Path
    script: Path = field(init=False)

    def __post_init__(self) -> None:
        self.script = self.folder / "machine.json"
        self.have()

    def have(self, *gpus: dict[str, Any], **more: Any) -> None:
        """Put these GPUs into the machine."""
        part = self.script.with_suffix(".part")
        part.write_text(json.dumps({"gpus": list(gpus), "level": 50, "peer": 0, **more}))
        os.replace(part, self.script)

    def environment(self, **more: str) -> dict[str, str]:
        """What a process needs to be on this machine."""
        ours = ("SAMESTEP_", "CUDA_", "FAKE_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return {
            **kept,
            "LD_LIBRARY_PATH": str(self.library),
            "FAKE_NVML": str(self.script),
            "PYTHONPATH": os.pathsep.join([str(self.torch), str(SOURCE)]),
            "SAMESTEP_LOCK_DIR": str(self.folder / "locks"),
            "COLUMNS": "200",
            **more,
        }

    def start(self, words: Sequence[str], **more: str) -> subprocess.Popen[str]:
        """Start `python WORDS` on this machine."""
        return subprocess.Popen(
            [sys.executable, *words],
            env=self.environment(**more),
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def samestep(self, *words: str, **more: str) -> tuple[int, str, str]:
        """Run `samestep WORDS` on this machine: exit code, stdout, stderr."""
        process = self.start(["-m", "samestep", *words], **more)
        out, err = process.communicate(timeout=TIMEOUT_S)
        return process.returncode, out, err


def build(folder: Path) -> Path:
    """Compile the stand-ins; the directory to put into LD_LIBRARY_PATH."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.fail(
            "no C compiler (`cc`) was found: the tests of devices build a stand-in for NVIDIA's library; "
            "install one (Debian: apt-get install gcc libc6-dev)"
        )
    for source, name in (("nvml.c", "libnvidia-ml.so.1"), ("cuda.c", "libcuda.so.1")):
        flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", f"-Wl,-soname,{name}"]
        made = subprocess.run(
            [compiler, *flags, "-o", str(folder / name), str(HERE / "fake" / source)], capture_output=True, text=True
        )
        if made.returncode:
            pytest.fail(f"{compiler} could not build {source}:\n{made.stderr}")
    return folder


def load(library: Path) -> ctypes.CDLL:
    """Load the stand-in into this process: whoever then asks for a library of that name gets it."""
    return ctypes.CDLL(str(library / "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)


def in_process(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Let this process be on the machine."""
    library = load(machine.library)
    for name in list(os.environ):
        if name.startswith(("SAMESTEP_", "CUDA_", "HIP_", "ROCR_", "ZE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("FAKE_NVML", str(machine.script))
    monkeypatch.setenv("SAMESTEP_LOCK_DIR", str(machine.folder / "locks"))
    yield machine
    assert library.fake_nvml_users() == 0, "the driver was left open"
