"""All of a rank's side effects arranged by one call."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from samestep import replica

PROGRAM = textwrap.dedent(
    """
    import os, sys
    from pathlib import Path
    import torch.distributed as dist
    from samestep import replica

    store, run_dir = sys.argv[1:]
    child = os.fork()
    rank = 0 if child else 1
    replica.install(rank, 2, Path(run_dir), dist.FileStore(store, 2), 99)
    import uuid

    name = f"{input()}-{uuid.uuid4().hex}"
    os.makedirs(name)
    with open(f"{name}/note.txt", "w") as file:
        file.write(name)
    assert os.listdir(name) == ["note.txt"]
    assert os.environ.get("WANDB_MODE") == (None if rank == 0 else "disabled")
    if rank == 0:
        assert os.waitpid(child, 0)[1] == 0
        print(name)
    else:
        os._exit(0)
    """
)


def test_two_ranks_leave_the_files_of_one(tmp_path: Path) -> None:
    run_dir, work = tmp_path / "run", tmp_path / "work"
    run_dir.mkdir()
    work.mkdir()
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "store"), str(run_dir)]
    environment = {key: value for key, value in os.environ.items() if key != "WANDB_MODE"}
    source = Path(replica.__file__).parents[2]
    environment["PYTHONPATH"] = str(source)
    done = subprocess.run(command, cwd=work, env=environment, input="Ada\n", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    name = done.stdout.strip()
    assert name.startswith("Ada-")
    assert os.listdir(work) == [name]
    assert (run_dir / "scratch1" / "root" / str(work / name / "note.txt").lstrip("/")).read_text() == name


def test_one_rank_needs_nothing(tmp_path: Path) -> None:
    before = builtins.open
    replica.install(0, 1, tmp_path, None, 5)
    try:
        assert builtins.open is before
        assert list(tmp_path.iterdir()) == []
    finally:
        replica.uninstall()
