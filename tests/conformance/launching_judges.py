"""Runs a judge under Samestep."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def run_judge(program: str, ranks: int, *options: str, seconds: int) -> str:
    """The judge's failures and summary; fails the test if it found any, died or hung."""
    command = [sys.executable, "-m", "samestep", "run", "--devices", f"cpu:{ranks}", str(HERE / program), *options]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    return done.stdout
