"""Run each way on two CPU processes and print the table of docs/which-way.md.

python examples/which_way/measure.py
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

HERE = Path(__file__).parent
RUN = ["-m", "samestep", "run", "--devices", "cpu:2"]
WAYS = {
    "`samestep run one_device.py`": [*RUN, "one_device.py"],
    "`nn.DataParallel(model)` under `samestep run`": [*RUN, "data_parallel.py"],
    "`samestep.DataParallel(model, device_ids=[1, 3])`": [*RUN, "samestep_data_parallel.py"],
    "`CUDA_VISIBLE_DEVICES` in the script, under `samestep run`": [*RUN, "visible_devices.py"],
    "`Accelerator()` under `samestep run`": [*RUN, "accelerate_ddp.py"],
    "DDP": [*RUN, "ddp.py"],
    "DDP by `mp.spawn`": [*RUN, "ddp_spawn.py"],
    'Ignite, `idist.Parallel(backend="gloo")`': [*RUN, "ignite_ddp.py"],
    'Lightning, `Trainer(strategy="ddp", devices=2)`': [*RUN, "lightning_ddp.py"],
    "Catalyst, `DistributedDataParallelEngine`": [*RUN, "catalyst_ddp.py"],
    "Accelerate, two processes, `split_batches=True`": [*RUN, "--mode", "distributed", "accelerate_ddp.py"],
}


def run(words: list[str], folder: str) -> tuple[str, dict[str, torch.Tensor]] | None:
    """The line that a way prints and its weights; None if it fails (a framework that is not there)."""
    command = [str(HERE / word) if word.endswith(".py") else word for word in words]
    done = subprocess.run([sys.executable, *command, "weights.pt"], cwd=folder, capture_output=True, text=True)
    found = re.search(r"right \d+ of \d+", done.stdout)
    if done.returncode != 0 or found is None:
        return None
    return found[0], torch.load(Path(folder, "weights.pt"), weights_only=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        truth = run(["one_device.py"], folder)
        assert truth is not None, "the program for one device does not run"
        print("| way | prints | final weights against one device |\n|---|---|---|")
        print(f"| `python one_device.py` | {truth[0]} | |", flush=True)
        for name, words in WAYS.items():
            found = run(words, folder)
            if found is None:
                print(f"| {name} | (not installed here) | |", flush=True)
                continue
            pairs = [(truth[1][key], found[1][key]) for key in truth[1]]
            worst = max(((a - b).abs().max() / a.abs().max()).item() for a, b in pairs)
            print(f"| {name} | {found[0]} | {worst:.1e} |", flush=True)


if __name__ == "__main__":
    main()
