"""Main reads its standard input; every rank gets it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import textwrap
from pathlib import Path

PROGRAM = textwrap.dedent(
    """
    import json, os, shutil, sys, tempfile
    from datetime import timedelta
    import torch.distributed as dist
    from samestep.replica import stdin

    path, result = sys.argv[1:]
    child = os.fork()
    rank = 1 if child == 0 else 0
    store = dist.FileStore(path, 2)
    store.set_timeout(timedelta(seconds=0.2))
    if rank == 0:
        stdin.install_main(store)
    else:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout = open(os.devnull, "w")
        stdin.install_replica(store)
    found = [input("name? "), sys.stdin.readline(), sys.stdin.read(3), sys.stdin.isatty(), sys.stdout.isatty()]
    found.append(list(shutil.get_terminal_size()))
    if not sys.stdin.isatty():
        found.append(sys.stdin.buffer.readline().decode())
        found.append([line for line in sys.stdin])
        try:
            found.append(input())
        except EOFError:
            found.append("EOF")
    with open(f"{result}{rank}", "w") as file:
        json.dump(found, file)
    if rank == 0:
        os.waitpid(child, 0)
        sys.exit(0)
    os._exit(0)
    """
)


def results(directory: Path) -> list[list[object]]:
    return [json.loads((directory / f"result{rank}").read_text()) for rank in range(2)]


def command(directory: Path) -> list[str]:
    return [sys.executable, "-c", PROGRAM, str(directory / "store"), str(directory / "result")]


def test_a_pipe_is_read_by_all(tmp_path: Path) -> None:
    text = "Ada\nsecond é\nabcdef\nx\ny"
    done = subprocess.run(command(tmp_path), input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    main, replica = results(tmp_path)
    assert main[:3] == ["Ada", "second é\n", "abc"]
    assert main[-1] == "EOF"
    assert replica == main
    assert done.stdout == "name? "


def test_a_terminal_is_main_s_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command(tmp_path), stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True)
    os.close(theirs)
    os.write(ours, b"Ada\nline\nend\n")
    assert process.wait(60) == 0
    os.close(ours)
    main, replica = results(tmp_path)
    assert main[:5] == ["Ada", "line\n", "end", True, True]
    assert replica == main
