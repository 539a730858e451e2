"""Which form a script is run in, as its source tells: nothing is executed here."""

from __future__ import annotations

from pathlib import Path

import pytest

from samestep.devices.spec import DeviceSelection
from samestep.errors import SamestepError
from samestep.launch.mode import Choice, check_mode, choose
from samestep.launch.script import ScriptTarget

CPU = DeviceSelection("cpu", (0, 1))
GPUS = DeviceSelection("cuda", (1, 3), ("1", "3"))
DIST = "import os, torch, torch.distributed as dist, torch.multiprocessing as mp\n"
LIGHT = "import lightning as L\n"
IGNITE = "import ignite.distributed as idist\n"


def chosen(folder: Path, source: str, mode: str = "auto", devices: DeviceSelection = CPU) -> Choice:
    path = folder / "train.py"
    path.write_text(source, encoding="utf-8")
    return choose(ScriptTarget(str(path), None), mode, devices)


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("print('plain')\n", "same"),
        ("import torch\nmodel = torch.nn.DataParallel(torch.nn.Linear(2, 2))\n", "same"),
        (DIST + "dist.init_process_group('gloo')\n", "ranks"),
        ("from torch.distributed import init_process_group as setup\nsetup('nccl')\n", "ranks"),
        (DIST + "def main():\n    dist.init_process_group()\nif __name__ == '__main__':\n    main()\n", "ranks"),
        (DIST + "class T:\n    def __init__(self):\n        dist.init_process_group()\nT()\n", "ranks"),
        (DIST + "if not dist.is_initialized():\n    dist.init_process_group()\n", "ranks"),
        (DIST + "if dist.is_available() and not dist.is_initialized():\n    dist.init_process_group()\n", "ranks"),
        (DIST + "try:\n    dist.init_process_group()\nfinally:\n    pass\n", "ranks"),
        (
            DIST + "if torch.cuda.is_available():\n    dist.init_process_group('nccl')\n"
            "else:\n    dist.init_process_group('gloo')\n",
            "ranks",
        ),
        (DIST + "rank = int(os.environ['LOCAL_RANK'])\n", "ranks"),
        (DIST + "import fire\ndef main():\n    dist.init_process_group()\nfire.Fire(main)\n", "ranks"),
        (DIST + "from torch.distributed.device_mesh import init_device_mesh\ninit_device_mesh('cpu', (2,))\n", "ranks"),
        # A branch for one device: the script can do without.
        (DIST + "if 'RANK' in os.environ:\n    dist.init_process_group()\n", "same"),
        (DIST + "if int(os.environ.get('WORLD_SIZE', 1)) > 1:\n    dist.init_process_group()\n", "same"),
        (DIST + "rank = int(os.environ.get('LOCAL_RANK', -1))\n", "same"),
        (DIST + "def unused():\n    dist.init_process_group()\n", "same"),
        (DIST + "def main(args):\n    if args.distributed:\n        dist.init_process_group()\nmain(None)\n", "same"),
        (DIST + "if torch.cuda.is_available():\n    dist.init_process_group()\n", "same"),
        # Scripts that start their processes themselves.
        (DIST + "def f(r):\n    dist.init_process_group()\nmp.spawn(f, nprocs=2)\n", "own"),
        (
            DIST + "def f(r):\n    dist.init_process_group()\n"
            "for r in range(2):\n    p = mp.Process(target=f, args=(r,))\n    p.start()\n",
            "own",
        ),
        (
            DIST + "def g():\n    dist.init_process_group()\ndef f(r, fn):\n    fn()\n"
            "ctx = mp.get_context('spawn')\nctx.Process(target=f, args=(0, g))\n"
            "mp.start_processes(f, nprocs=2)\n",
            "own",
        ),
        ("import torch.multiprocessing as mp\nmp.spawn(print, nprocs=2)\n", "same"),
        ("from accelerate import Accelerator\nAccelerator()\n", "same"),
        ("from accelerate import notebook_launcher\nnotebook_launcher(print, num_processes=2)\n", "own"),
        ("from catalyst import dl\nengine = dl.DistributedDataParallelEngine()\n", "own"),
        # Frameworks.
        (IGNITE + "with idist.Parallel(backend='gloo') as p:\n    pass\n", "ranks"),
        (IGNITE + "backend = 'nccl'\nwith idist.Parallel(backend=backend) as p:\n    pass\n", "ranks"),
        (IGNITE + "with idist.Parallel(backend='gloo', nproc_per_node=2) as p:\n    pass\n", "own"),
        (IGNITE + "with idist.Parallel(backend=None) as p:\n    pass\n", "same"),
        (IGNITE + "with idist.Parallel() as p:\n    pass\n", "same"),
        (IGNITE + "with idist.Parallel(backend='xla-tpu') as p:\n    pass\n", "same"),
        (LIGHT + "L.Trainer(strategy='ddp', devices=2)\n", "ranks"),
        (LIGHT + "L.Trainer(devices=2)\n", "ranks"),
        (LIGHT + "L.Trainer(strategy='ddp', devices=3)\n", "own"),
        (LIGHT + "L.Trainer(strategy='ddp_spawn', devices=2)\n", "own"),
        (
            LIGHT
            + "from lightning.pytorch.strategies import DDPStrategy\nL.Trainer(strategy=DDPStrategy(), devices=2)\n",
            "ranks",
        ),
        (LIGHT + "L.Trainer(devices=1)\n", "same"),
        (LIGHT + "L.Trainer(devices='auto')\n", "same"),
        (LIGHT + "L.Trainer()\n", "same"),
        ("import pytorch_lightning as pl\npl.Trainer(strategy='fsdp', devices=[0, 1])\n", "ranks"),
        ("from lightning.fabric import Fabric\nFabric(devices=2, strategy='ddp').launch()\n", "ranks"),
        ("this is no Python\n", "same"),
    ],
)
def test_form(tmp_path: Path, source: str, form: str) -> None:
    assert chosen(tmp_path, source).form == form


def test_what_cuda_is_there_decides_about_a_branch_on_it(tmp_path: Path) -> None:
    source = DIST + "if torch.cuda.is_available():\n    dist.init_process_group('nccl')\n"
    assert chosen(tmp_path, source, devices=GPUS).form == "ranks"
    assert chosen(tmp_path, LIGHT + "L.Trainer(strategy='ddp', devices='auto')\n", devices=GPUS).form == "ranks"


def test_functions_of_other_files_are_followed(tmp_path: Path) -> None:
    package = tmp_path / "parts"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "setup.py").write_text("import torch.distributed as d\ndef go():\n    d.init_process_group()\n")
    (tmp_path / "other.py").write_text("from parts.setup import go as begin\n", encoding="utf-8")
    assert chosen(tmp_path, "from parts.setup import go\ngo()\n").form == "ranks"
    assert chosen(tmp_path, "from parts import setup\nsetup.go()\n").form == "ranks"
    found = chosen(tmp_path, "from parts import setup\n")
    assert found.form == "same"
    assert found.said is not None and "setup.py, line 3" in found.said


def test_what_is_said(tmp_path: Path) -> None:
    assert chosen(tmp_path, "print('plain')\n").said is None
    said = chosen(tmp_path, DIST + "dist.init_process_group()\n").said
    assert said is not None
    assert said.startswith("train.py is a distributed program (dist.init_process_group(…), ")
    assert said.endswith("train.py, line 2): 2 processes as torchrun starts them, one per device")


def test_the_user_overrules(tmp_path: Path) -> None:
    source = DIST + "if 'RANK' in os.environ:\n    dist.init_process_group()\n"
    assert chosen(tmp_path, source, "distributed").form == "ranks"
    assert chosen(tmp_path, DIST + "dist.init_process_group()\n", "same").form == "same"
    assert (
        chosen(tmp_path, DIST + "def f(r):\n    dist.init_process_group()\nmp.spawn(f)\n", "distributed").form == "own"
    )
    with pytest.raises(SamestepError, match="modes are auto, same, distributed"):
        check_mode("ddp")
