"""Why a machine has no GPU that PyTorch can use: what is missing, and how that was found."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

_NVIDIA, _AMD, _INTEL = "0x10de", "0x1002", "0x8086"
_DISPLAY = ("0x03", "0x12")  # PCI classes: display controller, processing accelerator


@dataclass(frozen=True)
class TorchBuild:
    """What the installed PyTorch was built for; a version each, or None. `version` is None if there is no PyTorch."""

    version: str | None
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None

    @property
    def is_cpu_build(self) -> bool:
        """Whether it can use no GPU at all."""
        return self.version is not None and not (self.cuda or self.hip or self.xpu)

    def describe(self) -> str:
        """`2.13.0 for CUDA 12.6`."""
        if self.version is None:
            return "not installed"
        for name, version in (("CUDA", self.cuda), ("ROCm", self.hip), ("XPU", self.xpu)):
            if version:
                return f"{self.version} for {name} {version}"
        return f"{self.version}, the CPU build"


def torch_build() -> TorchBuild:
    """The installed PyTorch, asked without importing it (a second and a half)."""
    with contextlib.suppress(ImportError, ValueError, OSError, SyntaxError):
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.origin is not None:
            tree = ast.parse((Path(spec.origin).parent / "version.py").read_text(encoding="utf-8"))
            return TorchBuild(*(_constants(tree).get(name) for name in ("__version__", "cuda", "hip", "xpu")))
    return TorchBuild(None)


def _constants(tree: ast.Module) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = getattr(node, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
                found[target.id] = value.value if isinstance(value.value, str) else None
    return found


def missing_driver(root: Path = Path("/")) -> str:
    """Why the NVIDIA driver cannot be asked, as short as it can be told."""
    boards = pci_gpus(_NVIDIA, root)
    if (root / "proc/driver/nvidia/version").exists():
        if in_container(root):
            return (
                "this container was started without its GPUs: the machine has the NVIDIA driver; start it with "
                "`docker run --gpus all` (it needs the NVIDIA container toolkit), or what your runtime has for that"
            )
        return "the NVIDIA kernel module is loaded, but libnvidia-ml.so.1 of the driver is not found"
    if boards:
        return (
            f"no NVIDIA driver is loaded, though there is an NVIDIA GPU on the PCI bus ({', '.join(boards)}); "
            "install the driver, or see `dmesg` for why its module did not load"
        )
    return "no NVIDIA driver"


def pci_gpus(vendor: str, root: Path = Path("/")) -> list[str]:
    """The PCI addresses of a vendor's GPUs, driver or not."""
    found = []
    with contextlib.suppress(OSError):
        for device in sorted((root / "sys/bus/pci/devices").iterdir()):
            with contextlib.suppress(OSError):
                kind = (device / "class").read_text().strip()
                if (device / "vendor").read_text().strip() == vendor and kind.startswith(_DISPLAY):
                    found.append(device.name)
    return found


def in_container(root: Path = Path("/")) -> bool:
    """Whether this process runs in a container, as far as can be seen from inside."""
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists():
        return True
    with contextlib.suppress(OSError):
        return bool(re.search(r"docker|kubepods|containerd|libpod|lxc", (root / "proc/1/cgroup").read_text()))
    return False


def findings(root: Path = Path("/")) -> list[tuple[str, str]]:
    """What a GPU needs, one line each: the thing, and what was found of it."""
    nvidia, amd, intel = (pci_gpus(vendor, root) for vendor in (_NVIDIA, _AMD, _INTEL))
    boards = [
        f"{name} at {', '.join(found)}" for name, found in (("NVIDIA", nvidia), ("AMD", amd), ("Intel", intel)) if found
    ]
    version = _first_line(root / "proc/driver/nvidia/version")
    container = "yes" if in_container(root) else "no"
    if container == "yes":
        container += "; " + (
            f"NVIDIA_VISIBLE_DEVICES={os.environ['NVIDIA_VISIBLE_DEVICES']!r}"
            if "NVIDIA_VISIBLE_DEVICES" in os.environ
            else "NVIDIA_VISIBLE_DEVICES is not set, as it is where a container runtime gives GPUs to it"
        )
    return [
        ("GPU on the PCI bus", "; ".join(boards) or "none"),
        ("NVIDIA driver", version or missing_driver(root)),
        ("AMD driver", "loaded" if (root / "dev/kfd").exists() else "no /dev/kfd"),
        ("PyTorch", torch_build().describe()),
        ("container", container),
    ]


def _first_line(path: Path) -> str | None:
    with contextlib.suppress(OSError, IndexError):
        return path.read_text().splitlines()[0].strip()
    return None
