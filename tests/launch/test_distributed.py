"""Scripts that are distributed programs: what they print under their own launchers, and the report when they fail."""

from __future__ import annotations

import signal

import pytest
from harness import HANG, Ended, Workshop, gone, its_own_launch, torchrun, wait_for_files

RANK = """\
import os, sys, time
import torch
import torch.distributed as dist

def say(name):
    with open(name + ".part", "w") as file:
        file.write(str(os.getpid()))
    os.replace(name + ".part", name)

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.ones(2) * (rank + 1)
dist.all_reduce(total)
names = sorted(name for name in os.environ if name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
print(f"rank {rank} of {world} has {total.tolist()} {[os.environ[name] for name in names]}", flush=True)
say(f"pid{rank}")
"""
SPAWN = """\
import os, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def work(rank, world, fail):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    total = torch.ones(2) * (rank + 1)
    dist.all_reduce(total)
    print(f"rank {rank} of {world} has {total.tolist()}", flush=True)
    if fail and rank == 1:
        raise ValueError("only here")
    dist.all_reduce(total)

if __name__ == "__main__":
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29517")
"""


def same_lines(truth: Ended, found: Ended) -> None:
    """The same lines, in whatever order the processes have written them."""
    assert truth.code == 0, truth.err
    assert found.code == 0, found.err
    assert sorted(truth.out.splitlines()) == sorted(found.out.splitlines())
    assert truth.out


def pids(shop: Workshop, *names: str) -> list[int]:
    return [int(text) for text in wait_for_files(shop.folder, *names)]


def test_prints_what_it_prints_under_torchrun(shop: Workshop) -> None:
    shop.write(RANK)
    found = shop.run("script.py")
    same_lines(torchrun(shop, 2, "script.py"), found)
    assert found.err == (
        "samestep: script.py is a distributed program (dist.init_process_group(…), script.py, line 10): "
        "2 processes as torchrun starts them, one per device\n"
    )


def test_everything_listens_on_loopback_only(shop: Workshop) -> None:
    shop.write(
        RANK + "import psutil\ndist.barrier()\n"
        "for process in [psutil.Process(os.getppid()), psutil.Process()]:\n"
        "    for each in process.net_connections():\n"
        "        if each.status == 'LISTEN':\n            print('listens on', each.laddr.ip)\n"
        "dist.barrier()\n"
    )
    found = shop.run("script.py")
    assert found.code == 0, found.err
    assert {line for line in found.out.splitlines() if "listens" in line} == {"listens on 127.0.0.1"}


def test_the_first_failure_is_told_alone(shop: Workshop) -> None:
    path = shop.write(RANK + "if rank == 1:\n    raise ValueError('only here')\ndist.barrier()\n")
    found = shop.run("script.py", devices="cpu:3")
    assert found.code == 1
    assert found.err.split("\n", 1)[1] == (
        "samestep: rank 1 of 3 failed (exit code 1):\n"
        "Traceback (most recent call last):\n"
        f"  File \"{path}\", line 18, in <module>\n    raise ValueError('only here')\n"
        "ValueError: only here\n"
    )
    assert gone(pids(shop, "pid0", "pid1", "pid2"))


def test_the_failure_of_rank_0_is_told_alike(shop: Workshop) -> None:
    shop.write(RANK + "if rank == 0:\n    sys.exit(7)\ndist.barrier()\n")
    found = shop.run("script.py")
    assert found.code == 7
    assert found.err.split("\n", 1)[1] == "samestep: rank 0 of 2 (main) failed (exit code 7) without a message\n"


def test_a_killed_rank_is_named(shop: Workshop) -> None:
    shop.write(RANK + "if rank == 1:\n    os.kill(os.getpid(), 9)\ndist.barrier()\n")
    found = shop.run("script.py")
    assert found.code == 128 + signal.SIGKILL
    assert "samestep: rank 1 of 2 was killed by SIGKILL" in found.err
    assert gone(pids(shop, "pid0", "pid1"))


def test_a_rank_that_leaves_early_is_missed(shop: Workshop) -> None:
    """It ends well by itself; the other waits for it, and must not wait for ever."""
    shop.write(RANK + "if rank == 1:\n    sys.exit(0)\ndist.barrier()\n")
    found = shop.run("script.py")
    assert found.code == 1
    assert "samestep: rank 0 of 2 (main) failed" in found.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nobody(shop: Workshop, number: int) -> None:
    shop.write(RANK + "dist.barrier()\nsay(f'ready{rank}')\ntime.sleep(600)\n")
    process = shop.start("script.py")
    ranks = pids(shop, "ready0", "ready1")
    process.send_signal(number)
    process.communicate(timeout=HANG)
    assert process.returncode == -number
    assert gone(ranks)


def test_the_script_may_name_another_port(shop: Workshop) -> None:
    """Under torchrun that would hang: nobody serves that port."""
    shop.write("import os\nos.environ['MASTER_PORT'] = '29519'\n" + RANK)
    found = shop.run("script.py")
    assert (found.code, len(found.out.splitlines())) == (0, 2), found.err


def test_a_world_that_fell_apart_is_refused(shop: Workshop) -> None:
    shop.write(RANK.replace('"gloo"', '"gloo", rank=0, world_size=1'))
    found = shop.run("script.py")
    assert found.code == 2
    assert "each of the 2 processes would be rank 0 of a process group of its own" in found.err
    assert not found.out


def test_processes_that_the_script_spawns(shop: Workshop) -> None:
    shop.write(SPAWN + "    mp.spawn(work, args=(2, 'fail' in sys.argv), nprocs=2)\n    print('done')\n")
    same_lines(its_own_launch(shop, "script.py"), shop.run("script.py"))
    found = shop.run("script.py", "fail")
    assert found.code == 1
    assert "done" not in found.out
    report = found.err.partition("samestep: process 1, which the script had started, failed (exit code 1):\n")[2]
    assert report.startswith("Traceback (most recent call last):\n  File")
    assert report.endswith("ValueError: only here\n")
    assert found.err.count("Traceback") == 1


def test_processes_that_the_script_starts_one_by_one(shop: Workshop) -> None:
    """Plain Python ends with 0 here, whatever becomes of the processes."""
    shop.write(
        SPAWN + "    mp.set_start_method('spawn')\n"
        "    started = [mp.Process(target=work, args=(rank, 2, True)) for rank in range(2)]\n"
        "    [each.start() for each in started]\n    [each.join() for each in started]\n    print('done')\n"
    )
    found = shop.run("script.py")
    assert (found.code, found.out.splitlines()[-1]) == (1, "done")
    assert "samestep: Process-2, which the script had started, failed (exit code 1):\nTraceback" in found.err
    assert found.err.count("Traceback") == 1


HIDDEN = """\
import importlib
dist = importlib.import_module("torch.dist" + "ributed")
{}getattr(dist, "init_process_" + "group")("gloo")
"""
AFTER = "print('rank', dist.get_rank(), 'of', dist.get_world_size())\n"


def test_what_the_source_hides_is_found_at_run_time(shop: Workshop) -> None:
    shop.write(HIDDEN.format("") + AFTER)
    found = shop.run("script.py")
    assert sorted(found.out.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
    assert found.err == (
        "samestep: the script is a distributed program (init_process_group, script.py, line 3); started again: "
        "2 processes as torchrun starts them, one per device\n"
    )


def test_nothing_is_printed_twice(shop: Workshop) -> None:
    shop.write(HIDDEN.format("print('first')\n") + AFTER)
    found = shop.run("script.py")
    assert (found.code, found.out) == (2, "first\n")
    assert "it had printed something" in found.err
    assert "run it with samestep run --mode distributed (" in found.err
    asked = shop.run("--mode", "distributed", "script.py")
    assert (asked.code, asked.out.count("first"), asked.out.count("rank")) == (0, 2, 2)


def test_a_mode_that_was_asked_for_is_kept(shop: Workshop) -> None:
    shop.write(HIDDEN.format("") + AFTER)
    found = shop.run("--mode", "same", "script.py")
    assert found.code == 2
    assert "--mode same: the script is a distributed program (init_process_group)" in found.err
    assert shop.run("--mode", "ddp", "script.py").code == 2


def test_one_device_needs_no_second_start(shop: Workshop) -> None:
    shop.write(HIDDEN.format("print('first')\n") + AFTER)
    found = shop.run("script.py", devices="cpu:1")
    assert (found.code, found.out, found.err) == (0, "first\nrank 0 of 1\n", "")


# ---------------------------------------------------------------------- frameworks, each against its own launcher
IGNITE = """\
import torch
import ignite.distributed as idist

def training(local_rank, config):
    total = idist.all_reduce(torch.ones(1) * (idist.get_rank() + 1))
    print("rank", idist.get_rank(), "of", idist.get_world_size(), idist.backend(), local_rank, total.item(), flush=True)
    idist.barrier()

if __name__ == "__main__":
    with idist.Parallel(backend="gloo"MORE) as parallel:
        parallel.run(training, {})
"""
LIGHTNING = """\
import torch
import lightning as L
from torch.utils.data import DataLoader, TensorDataset

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 3)

    def training_step(self, batch, index):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def on_train_epoch_end(self):
        weight = self.net.weight.sum().item()
        print(self.global_rank, self.trainer.world_size, self.trainer.num_training_batches, f"{weight:.5f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

if __name__ == "__main__":
    L.seed_everything(0)
    x = torch.randn(64, 8)
    data = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=8)
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    L.Trainer(accelerator="cpu", max_epochs=1, MORE, **quiet).fit(Model(), data)
"""
FABRIC = """\
import torch
from lightning.fabric import Fabric
fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
fabric.seed_everything(0)
model = torch.nn.Linear(4, 2)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
fabric.backward(model(torch.ones(2, 4) * (fabric.global_rank + 1)).pow(2).mean())
optimizer.step()
print("rank", fabric.global_rank, "of", fabric.world_size, f"{model.weight.sum().item():.5f}", flush=True)
fabric.barrier()
"""
ACCELERATE = """\
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
print(accelerator.process_index, accelerator.num_processes, accelerator.gather(torch.ones(1)).tolist(), flush=True)
"""


@pytest.mark.parametrize("more", ["", ", nproc_per_node=2"])
def test_ignite(shop: Workshop, more: str) -> None:
    pytest.importorskip("ignite")
    shop.write(IGNITE.replace("MORE", more))
    truth = its_own_launch(shop, "script.py") if more else torchrun(shop, 2, "script.py")
    same_lines(truth, shop.run("script.py"))


@pytest.mark.parametrize(
    "more",
    [
        'strategy="ddp", devices=2',
        pytest.param("devices=2", marks=pytest.mark.conformance),
        pytest.param('strategy="ddp_spawn", devices=2', marks=pytest.mark.conformance),
        pytest.param('strategy="ddp", devices=3', marks=pytest.mark.conformance),
        pytest.param('strategy="".join(["d", "dp"]), devices=2', marks=pytest.mark.conformance),
    ],
)
def test_lightning(shop: Workshop, more: str) -> None:
    pytest.importorskip("lightning")
    shop.write(LIGHTNING.replace("MORE", more))
    same_lines(its_own_launch(shop, "script.py"), shop.run("script.py"))


@pytest.mark.conformance
def test_fabric(shop: Workshop) -> None:
    pytest.importorskip("lightning")
    shop.write(FABRIC)
    same_lines(its_own_launch(shop, "script.py"), shop.run("script.py"))


@pytest.mark.conformance
def test_accelerate_with_the_variables_of_torchrun(shop: Workshop) -> None:
    pytest.importorskip("accelerate")
    shop.write(ACCELERATE)
    same_lines(torchrun(shop, 2, "script.py"), shop.run("--mode", "distributed", "script.py"))
    alone = shop.run("script.py")
    assert (alone.code, alone.out) == (0, "0 1 [1.0]\n")


def test_a_failure_inside_lightning_shows_the_users_frames(shop: Workshop) -> None:
    pytest.importorskip("lightning")
    source = LIGHTNING.replace("MORE", 'strategy="ddp", devices=2')
    shop.write(
        source.replace(
            "        x, y = batch\n", "        x, y = batch\n        assert self.global_rank == 0 or index < 2\n"
        )
    )
    found = shop.run("script.py")
    assert found.code == 1
    report = found.err.partition("samestep: rank 1 of 2 failed (exit code 1):\n")[2]
    frames = [line for line in report.splitlines() if line.startswith("  File ")]
    assert len(frames) == 2
    assert all(str(shop.folder) in line for line in frames)
    assert " frames in lightning, torch …\n" in report
    assert report.endswith("AssertionError\n")


def test_no_environment_of_another_launcher_gets_in(shop: Workshop) -> None:
    shop.write(RANK)
    process = shop.samestep("run", "--devices", "cpu:2", "script.py", RANK="5", WORLD_SIZE="9", MASTER_PORT="1")
    assert process.code == 0, process.err
    assert sorted(line[:11] for line in process.out.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
