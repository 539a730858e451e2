"""`samestep` on a machine that is not there: real launcher and processes, a stand-in for the session and for CUDA.

The stand-in for CUDA reads the variable that the driver would read when it is first used, and remembers which device
was made current. What each rank has seen is left in $RECORD.
"""

from __future__ import annotations

import importlib
import sys
import types

import samestep.errors
from samestep.devices import inventory
from samestep.devices.missing import TorchBuild

inventory.torch_build = lambda: TorchBuild("2.13.0", cuda="12.6")

SOURCE = '''
import ctypes, json, os
import torch
from samestep import notice, replica
from samestep.launch import device_hooks
from samestep.launch.script import run_target

getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p


class Cuda:
    """As much of CUDA as the scripts use."""

    def __init__(self):
        self.seen = None
        self.current = 0
        self.initialized = False

    def start(self):
        self.initialized = True
        return self.look()

    def look(self):
        if self.seen is None:
            self.seen = (getenv(b"CUDA_VISIBLE_DEVICES") or b"").decode().split(",")
        return self

    def count(self):
        return len((getenv(b"CUDA_VISIBLE_DEVICES") or b"").decode().split(","))

    def index(self, device):
        if device is None:
            return self.current
        if isinstance(device, int):
            return device
        named = torch.device(device).index
        return self.current if named is None else named

    def available(self):  # the driver reads the variable, and PyTorch is not initialised yet
        return bool(self.look().seen)

    def set_device(self, device):
        index = self.index(device)
        assert 0 <= index < len(self.start().seen), f"invalid device ordinal {index}"
        self.current = index

    def properties(self, device):
        class Facts:
            name = self.start().seen[self.index(device)]

        return Facts


def run_rank(context, target, explain=None, **more):
    notice.set_speaker(context.rank == 0)
    cuda = Cuda()
    record = open(os.path.join(os.environ["RECORD"], f"rank{context.rank}.json"), "w")  # before files become private
    if context.selection.kind == "cuda":
        torch.cuda.is_available = cuda.available
        torch.cuda.device_count = cuda.count
        torch.cuda.set_device = torch.accelerator.set_device_index = cuda.set_device
        torch.cuda.current_device = lambda: cuda.start().current
        torch.cuda.get_device_properties = cuda.properties
        torch.cuda.is_initialized = lambda: cuda.initialized
        # What the session's own DataParallel is to a script.
        torch.nn.DataParallel.__init__ = lambda self, module, device_ids=None, output_device=None, dim=0: (
            torch.nn.Module.__init__(self), setattr(self, "device_ids", device_ids))[0]
    replica.install(context.rank, context.world_size, context.run_dir, None, context.shared_seed)
    device_hooks.install(context, lambda: os.environ.get("HAS_READ") == "1")
    try:
        run_target(target)
    finally:
        device_hooks.finish()
        cuda.start()
        json.dump({"ranks": context.world_size, "seen": cuda.seen, "own": cuda.seen[cuda.current]}, record)
        record.close()
'''

session = types.ModuleType("samestep.session")
exec(compile(SOURCE, samestep.errors.__file__.replace("errors", "session"), "exec"), session.__dict__)
sys.modules["samestep.session"] = session

importlib.import_module("samestep.cli").main(sys.argv[1:])
