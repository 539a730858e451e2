"""`samestep.launch(fn, …)` from code."""

from __future__ import annotations

import pytest
from harness import Workshop

PROGRAM = """\
import sys
import samestep
import samestep.launch.local

def work(x, fail=None):
    import samestep.world
    if fail == "value":
        raise ValueError("not this")
    if fail == "exit":
        sys.exit(3)
    return x * 2, samestep.world_size()

if __name__ == "__main__":
    print(samestep.launch(work, 21, devices="cpu:2"))
    print(samestep.launch(lambda: (sys.argv, "torch" in sys.modules), devices="cpu:1"))
    for fail in ("value", "exit"):
        try:
            samestep.launch(work, 1, fail=fail, devices="cpu:2")
        except RuntimeError as error:
            print(error)
    try:
        samestep.launch(work, 1, devices="cpu:0")
    except samestep.SamestepError as error:
        print(error)
"""


def test_returns_mains_result_or_raises(shop: Workshop) -> None:
    pytest.importorskip("cloudpickle")
    path = shop.write(PROGRAM)
    found = shop.plain("script.py", "word")
    assert (found.code, found.err) == (0, "")
    lines = found.out.splitlines()
    assert lines[0] == "(42, 2)"
    assert lines[1] == "(['script.py', 'word'], True)"
    assert lines[2] == "launch on 2 CPU processes failed (exit code 1):"
    assert "ValueError: not this" in lines
    assert f'  File "{path}", line 8, in work' in lines
    assert '    raise ValueError("not this")' in lines
    assert "launch on 2 CPU processes failed (exit code 3):" in lines
    assert lines[-1].startswith("devices 'cpu:0'")
