"""Two processes with the backend "xla" on the CPU: each is rank 0 of 1, and nothing says so."""

import torch.distributed as dist
import torch_xla.distributed.xla_backend  # noqa: F401 (it adds the backend)

dist.init_process_group("xla", init_method="xla://")
print("rank", dist.get_rank(), "of", dist.get_world_size())
