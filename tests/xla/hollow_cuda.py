"""Lets PyPI's torch 2.9, a CUDA build, be imported on a machine without NVIDIA's libraries.

torch_xla 2.9 wants exactly that torch. At import the dynamic linker looks for cuBLAS, cuDNN, NCCL and the like: 3 GB to
download, of which nothing is called on a CPU. This puts hollow libraries of the same names next to torch's own, whose
functions end the process if they are called after all. For the tests of XLA only; needs a C compiler and `nm`.

    .venv-xla/bin/python tests/xla/hollow_cuda.py
"""

from __future__ import annotations

import subprocess
import sysconfig
import tempfile
from pathlib import Path

#: library → the version of its symbols, and what its unversioned symbols begin with
LIBRARIES = {
    "libcublas.so.12": ("libcublas.so.12", ()),
    "libcublasLt.so.12": ("libcublasLt.so.12", ()),
    "libcudnn.so.9": ("libcudnn.so.9", ()),
    "libcufft.so.11": ("libcufft.so.11", ()),
    "libcurand.so.10": ("libcurand.so.10", ("curand",)),
    "libcusolver.so.11": ("libcusolver.so.11", ()),
    "libcusparse.so.12": ("libcusparse.so.12", ()),
    "libcusparseLt.so.0": ("libcusparseLt.so.0", ("cusparseLt",)),
    "libnccl.so.2": ("libnccl.so.2", ("nccl", "pnccl")),
    "libnvshmem_host.so.3": ("NVSHMEM", ()),
}


def main() -> None:
    folder = Path(sysconfig.get_path("purelib")) / "torch" / "lib"
    if not (folder / "libtorch_cuda.so").exists():
        print("torch is no CUDA build; nothing to do")
        return
    wanted = _undefined(folder)
    for name, (version, beginnings) in LIBRARIES.items():
        if any((folder.parents[1] / "nvidia").glob(f"*/lib/{name}")):
            continue  # the real one is there
        symbols = {symbol.split("@")[0] for symbol in wanted if symbol.endswith("@" + version)}
        symbols |= {symbol for symbol in wanted if beginnings and symbol.startswith(beginnings) and "@" not in symbol}
        _build(folder / name, version, sorted(symbols))


def _undefined(folder: Path) -> set[str]:
    """The symbols that torch's libraries expect from others."""
    found: set[str] = set()
    for library in folder.glob("libtorch*.so"):
        lines = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True)
        found |= {line.split()[-1] for line in lines.stdout.splitlines() if line.strip()}
    return found


def _build(library: Path, version: str, symbols: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        source, script = Path(name, "hollow.c"), Path(name, "versions.map")
        functions = "".join(f"int {symbol}(void) {{ abort(); return 1; }}\n" for symbol in symbols)
        source.write_text("extern void abort(void);\n" + functions)
        script.write_text(f"{version} {{ *; }};\n")
        flags = ["-w", "-shared", "-fPIC", "-fno-builtin", f"-Wl,-soname,{library.name}"]
        subprocess.run(["cc", *flags, f"-Wl,--version-script={script}", "-o", library, source], check=True)


if __name__ == "__main__":
    main()
