"""Draws that come from the operating system are alike on every rank, and only those that should be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

DRAWS = textwrap.dedent(
    """
    import json, os, random, secrets, sys, tempfile, threading, uuid
    from os import urandom
    import numpy as np
    import torch
    from samestep.replica import randomness

    seed, extra = int(sys.argv[1]), sys.argv[2]
    randomness.install(seed)
    randomness.install(seed + 1)  # the first call counts
    if extra == "library":  # a library draws for itself, on this rank only
        space = {"__name__": "tracker.core"}
        exec("import uuid, os, random\\nrun = uuid.uuid4(); os.urandom(3); random.SystemRandom().random()", space)
    if extra == "thread":
        thread = threading.Thread(target=lambda: (secrets.token_hex(), uuid.uuid4()), name="background")
        thread.start()
        thread.join()
    if extra == "files":
        tempfile.mkdtemp()

    found = {
        "random": random.random(),
        "numpy": np.random.rand(),
        "torch": torch.rand(()).item(),
        "urandom": os.urandom(8).hex(),
        "captured urandom": urandom(8).hex(),
        "token": secrets.token_hex(8),
        "choice": secrets.choice(range(1000)),
        "randbits": secrets.randbits(64),
        "system": random.SystemRandom().random(),
        "uuid4": str(uuid.uuid4()),
        "uuid1": str(uuid.uuid1()),
        "Random": random.Random().random(),
        "default_rng": np.random.default_rng().random(),
        "second default_rng": np.random.default_rng().random(),
        "SeedSequence": np.random.SeedSequence().entropy,
        "RandomState": np.random.RandomState().rand(),
        "PCG64": np.random.Generator(np.random.PCG64()).random(),
        "torch.seed": torch.seed(),
        "torch.random.seed": torch.random.seed(),
        "after torch.seed": torch.rand(()).item(),
    }
    random.seed()
    np.random.seed()
    found["random.seed()"] = random.random()
    found["numpy.random.seed()"] = np.random.rand()
    random.seed(3)
    found["random.seed(3)"] = random.random()
    found["Random(3)"] = random.Random(3).random()
    found["torch.Generator"] = torch.Generator().initial_seed()
    randomness.uninstall()
    found["after"] = os.urandom(8).hex()
    print(json.dumps(found))
    """
)

FREE = {"after"}


def draws(seed: int, extra: str = "") -> dict[str, Any]:
    """What a fresh process draws."""
    command = [sys.executable, "-c", DRAWS, str(seed), extra]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def first() -> dict[str, Any]:
    return draws(2**130 + 5)


@pytest.mark.parametrize("extra", ["", "library", "thread", "files"])
def test_ranks_draw_alike(first: dict[str, Any], extra: str) -> None:
    second = draws(2**130 + 5, extra)
    assert {key for key in first if first[key] != second[key]} == FREE


def test_another_run_draws_otherwise(first: dict[str, Any]) -> None:
    second = draws(7)
    fixed = {"random.seed(3)", "Random(3)", "torch.Generator"}
    assert {key for key in first if first[key] == second[key]} == fixed


def test_seeds_mean_what_they_say(first: dict[str, Any]) -> None:
    import random

    assert first["Random(3)"] == first["random.seed(3)"] == random.Random(3).random()


def test_draws_do_not_repeat(first: dict[str, Any]) -> None:
    assert len({first["urandom"], first["captured urandom"], first["token"]}) == 3
    assert first["default_rng"] != first["second default_rng"]
    assert first["torch.seed"] != first["torch.random.seed"]


def test_forked_workers_draw_otherwise_and_alike_on_all_ranks() -> None:
    program = textwrap.dedent(
        """
        import os, uuid
        from samestep.replica import randomness
        randomness.install(11)
        for worker in range(3):
            reading, writing = os.pipe()
            if os.fork() == 0:
                if worker == 2:
                    randomness.diverge(str(os.getpid()))
                os.write(writing, uuid.uuid4().hex.encode())
                os._exit(0)
            os.wait()
            print(os.read(reading, 100).decode())
        print(uuid.uuid4().hex)
        """
    )
    one, two = (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    )
    assert len(set(one)) == 4
    assert one[:2] == two[:2]
    assert one[2] != two[2]
    assert one[3] == two[3]


def test_multiprocessing_still_works() -> None:
    program = textwrap.dedent(
        """
        import multiprocessing, os
        from samestep.replica import randomness
        if __name__ == "__main__":
            randomness.install(1)
            context = multiprocessing.get_context("fork")
            with context.Pool(2) as pool, context.Manager() as manager:
                shared = manager.list(pool.map(abs, [-1, -2]))
                print(list(shared))
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[1, 2]"
