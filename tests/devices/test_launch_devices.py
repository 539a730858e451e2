"""`samestep.launch(fn, devices=…)`: the real session, on GPUs that are not there and are not touched."""

from __future__ import annotations

from fake_machine import SOURCE, TIMEOUT_S, Machine, gpu, uuid

PROGRAM = """\
import ctypes
import samestep
import samestep.launch.api
from samestep.devices import inventory, locks
from samestep.devices.missing import TorchBuild
inventory.torch_build = lambda: TorchBuild("2.13.0", cuda="12.6")

def seen():
    import os
    from samestep import world
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    mine = getenv(b"CUDA_VISIBLE_DEVICES").decode(), os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = "2"
    return world.current().all_gather_objects(mine)

if __name__ == "__main__":
    for line in samestep.launch(seen, devices=[1, 3]):
        print(*line)
    print([locks.holder(name) for name in %r], locks._held)
    for wrong in (2, [], [7], "1，3"):
        try:
            samestep.launch(seen, devices=wrong)
        except samestep.SamestepError as error:
            print(error)
"""


def test_devices_are_named_in_code(elsewhere: Machine) -> None:
    elsewhere.have(*[gpu(number) for number in range(4)])
    path = elsewhere.folder / "program.py"
    path.write_text(PROGRAM % [uuid(1), uuid(3)])
    process = elsewhere.start([str(path)], PYTHONPATH=str(SOURCE))
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    first, second, free, *wrong = out.splitlines()
    assert first == f"{uuid(1)},{uuid(3)} 1,3"
    assert second == f"{uuid(3)},{uuid(1)} 1,3"
    assert free == "[None, None] {}", "what was held is let go"
    assert [text.split(":")[0] for text in wrong] == [
        "devices=2",
        "devices=[] names no device; devices are written all, 1,3 or 0-3 (GPU numbers), free",
        "devices '7'",
        "devices '1，3'",
    ]
    assert "is ignored: this run was started on GPUs 1, 3" in err
