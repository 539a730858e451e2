"""XLA devices: one process, one program, whose batches are divided among the devices by torch_xla's SPMD mode."""
