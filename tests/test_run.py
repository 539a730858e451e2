"""What `samestep run` promises besides numbers: one visible process, the report, warnings, the public functions."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import samestep


def run(directory: Path, script: str, *options: str, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    """Run a script's text under Samestep in an empty directory."""
    path = directory / "script.py"
    path.write_text(textwrap.dedent(script), encoding="utf-8")
    command = [sys.executable, "-m", "samestep", "run", "--devices", f"cpu:{ranks}", *options, str(path)]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120)


TRAINING = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = TensorDataset(torch.randn(36, 4), torch.randint(0, 3, (36,)))
    for x, y in DataLoader(data, 16):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.4f}")
"""


def test_the_script_sees_one_process(tmp_path: Path) -> None:
    """No process group, none of the launchers' variables, one line of output."""
    done = run(
        tmp_path,
        """
        import os, torch
        names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID"]
        seen = [n for n in os.environ if n in names or n.startswith("TORCHELASTIC_")]
        print(torch.distributed.is_initialized(), seen, __name__)
        """,
        ranks=3,
    )
    assert (done.returncode, done.stdout) == (0, "False [] __main__\n"), done.stderr


def test_a_quiet_run_says_nothing(tmp_path: Path) -> None:
    """Where all is well stderr is empty."""
    done = run(tmp_path, TRAINING)
    assert (done.returncode, done.stderr) == (0, "")


def test_explain_as_json(tmp_path: Path) -> None:
    """The report tells how batches were cut, what was split, and at which line something was gathered."""
    done = run(tmp_path, TRAINING, "--explain", "report.json", ranks=3)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["ranks"] == 3
    assert {tuple(b["sizes"]): b["count"] for b in report["batches"]} == {(6, 5, 5): 2, (2, 1, 1): 1}
    assert report["regions"] == {"Sequential (training)": "split"}
    assert [(g["operation"], g["kind"], g["line"], g["count"]) for g in report["gathers"]] == [
        ("item", "Partial", 13, 1)
    ]
    assert 0 < report["communication_s"] < report["seconds"]


def test_explain_on_the_terminal_leaves_stdout_alone(tmp_path: Path) -> None:
    """The report goes to stderr; stdout is the script's, byte for byte."""
    plain = run(tmp_path, TRAINING)
    told = run(tmp_path, TRAINING, "--explain")
    assert told.stdout == plain.stdout
    assert "16 → 8 + 8" in told.stderr


def test_a_batch_of_one_on_four_ranks(tmp_path: Path) -> None:
    """A last batch with fewer rows than ranks is computed whole, and the report says so."""
    done = run(tmp_path, TRAINING.replace("36", "33"), "--explain", "report.json", ranks=4)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["whole_batches"] == {"fewer rows than ranks": 1}


def test_parameters_that_differ_are_told_and_mended(tmp_path: Path) -> None:
    """Initial values from a source that differs between ranks: main's are taken, with one warning."""
    done = run(
        tmp_path,
        """
        import time, torch, samestep
        model = torch.nn.Linear(3, 2)
        with torch.no_grad():
            model.bias.fill_(float(samestep.rank()))
        model(samestep.shard(torch.zeros(4, 3)))
        samestep.print_all(model.bias.tolist())
        """,
    )
    assert done.stdout == "[rank 0] [0.0, 0.0]\n[rank 1] [0.0, 0.0]\n"
    assert done.stderr.count("differed between the ranks") == 1
    assert "1 of 2 tensors of Linear (bias)" in done.stderr


def test_a_run_that_split_nothing_says_so(tmp_path: Path) -> None:
    """A model called only with tensors of the script's own: right, but no faster, and told."""
    done = run(tmp_path, "import torch\nprint(torch.nn.Linear(2, 2)(torch.zeros(4, 2)).shape)\n")
    assert done.stdout == "torch.Size([4, 2])\n"
    assert done.stderr.startswith("samestep: nothing was split")


def test_a_run_that_splits_nothing_says_so_soon(tmp_path: Path) -> None:
    """Not only at the end, which may be days away: the eleventh step is late enough to have said it."""
    done = run(
        tmp_path,
        """
        import sys, torch
        model = torch.nn.Linear(2, 2)
        for step in range(11):
            model(torch.zeros(4, 2)).sum().backward()
        sys.stderr.write("after eleven steps\\n")
        """,
    )
    assert done.stderr.startswith("samestep: nothing was split")
    assert done.stderr.endswith("after eleven steps\n")


def test_random_numbers_inside_modules_are_told_once(tmp_path: Path) -> None:
    program = """
        import torch, samestep
        for p in (0.1, 0.2):
            torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(p))(samestep.shard(torch.zeros(4, 3)))
        """
    told = run(tmp_path, program).stderr
    assert told.startswith("samestep: random numbers inside modules (dropout, noise)")
    assert told.count("\n") == 1


def test_a_mistake_of_the_scripts_is_told_as_such(tmp_path: Path) -> None:
    """No word of how the module is divided, and a warning that the shapes are of a device's rows."""
    done = run(
        tmp_path,
        """
        import torch, samestep
        torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(4, 3))(samestep.shard(torch.zeros(4, 6)))
        """,
    )
    assert "opened" not in done.stderr
    assert "shapes cannot be multiplied (2x5 and 4x3)" in done.stderr
    assert ("may be those of one device's rows" in done.stderr) == (sys.version_info >= (3, 11))


THREADS = """
    import queue, threading, torch
    from concurrent.futures import ThreadPoolExecutor
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    data = DataLoader(TensorDataset(torch.randn(37, 4), torch.randint(0, 3, (37,))), 8)
    def mean(batches):
        return sum(torch.nn.functional.cross_entropy(model(x), y).item() for x, y in batches)
"""


def test_one_thread_after_another_may_compute(tmp_path: Path) -> None:
    program = (
        THREADS
        + """
    print(f"{mean(data):.4f}")
    with ThreadPoolExecutor(1) as pool:
        print(f"{pool.submit(mean, data).result():.4f}")
        print(f"{mean(data):.4f}")
    late = queue.Queue()
    def log():
        while (loss := late.get()) is not None:
            print(f"{float(loss):.4f}")
    thread = threading.Thread(target=log)
    thread.start()
    for x, y in data:
        late.put(model(x).detach().sum())
    late.put(None)
    thread.join()
    """
    )
    done = run(tmp_path, program)
    plain = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == plain.stdout
    assert len(done.stdout.splitlines()) == 8


def test_two_threads_at_a_time_are_refused(tmp_path: Path) -> None:
    """Their collectives would meet those of the other thread on another rank."""
    program = (
        THREADS
        + """
    ahead = queue.Queue(1)
    threading.Thread(target=lambda: [ahead.put(batch) for batch in data], daemon=True).start()
    mean(iter(ahead.get, None))
    """
    )
    done = run(tmp_path, program)
    assert done.returncode == 1
    assert "two threads of the script, " in done.stderr
    assert "num_workers=1" in done.stderr


def test_gradients_of_different_steps_are_not_added(tmp_path: Path) -> None:
    """One rank leaves the loop a step early, as after a signal, and its next backward meets one of the loop's."""
    done = run(
        tmp_path,
        """
        import torch, samestep
        model = torch.nn.Linear(4, 3)
        x = samestep.shard(torch.randn(8, 4))
        for step in range(5):
            if step - samestep.rank() == 3:
                break
            model(x).sum().backward()
        model(2 * x).sum().backward()
        print("added")
        """,
        ranks=3,
    )
    assert done.returncode == 1
    assert "The ranks are at different lines of the script" in done.stderr
    assert done.stdout == ""


def test_parameters_that_drift_apart_are_found(tmp_path: Path) -> None:
    """A rank that changes its parameters by itself is found out, with possible reasons."""
    done = run(
        tmp_path,
        """
        import torch, samestep
        model = torch.nn.Linear(3, 2)
        for step in range(120):
            if step == 10 and samestep.rank() == 1:
                model.weight.data.mul_(1.5)
            model(samestep.shard(torch.ones(4, 3))).sum().backward()
        """,
    )
    assert done.returncode == 1
    assert "no longer the same on every rank" in done.stderr


@pytest.mark.parametrize("ranks", [1, 3])
def test_public_functions_in_a_run(tmp_path: Path, ranks: int) -> None:
    """shard, whole, local, rank, world_size, is_main, barrier; the same script with one rank."""
    done = run(
        tmp_path,
        """
        import torch, samestep
        w = torch.arange(7.0, requires_grad=True)
        x = samestep.shard(w * 1.0)
        assert x.shape == (7,) and float(x.sum()) == 21.0
        assert torch.equal(samestep.whole({"a": [x]})["a"][0], w)
        (x * torch.arange(7.0)).sum().backward()
        assert torch.equal(w.grad, torch.arange(7.0))
        samestep.barrier()
        assert samestep.is_main() == (samestep.rank() == 0)
        sizes = samestep.world.current().all_gather_objects(samestep.local(x).numel())
        assert sum(sizes) == 7 and len(sizes) == samestep.world_size()
        """,
        ranks=ranks,
    )
    assert done.returncode == 0, done.stderr


def test_public_functions_without_the_launcher() -> None:
    """One rank; everything is whole."""
    x = torch.arange(6.0)
    assert samestep.shard(x) is x
    assert samestep.local(x) is x
    assert samestep.whole([x])[0] is x
    assert (samestep.rank(), samestep.world_size(), samestep.is_main()) == (0, 1, True)
    samestep.barrier()
    model = samestep.DataParallel(torch.nn.Linear(6, 2), device_ids=None)
    assert isinstance(model, torch.nn.DataParallel)
    assert list(model.state_dict()) == ["module.weight", "module.bias"]
    assert model(x.view(1, 6)).shape == (1, 2)


def test_shard_refuses_what_does_not_fit() -> None:
    """The message names what was asked and what there is."""
    with pytest.raises(samestep.SamestepError, match=r"dim=3.*shape \(2, 3\)"):
        samestep.shard(torch.zeros(2, 3), 3)
    with pytest.raises(samestep.SamestepError, match=r"sizes=\(1, 2\).*2 rows for 1 rank"):
        samestep.shard(torch.zeros(2, 3), 0, [1, 2])
