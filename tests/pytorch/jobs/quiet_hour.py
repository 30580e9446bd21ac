# SPDX-License-Identifier: Apache-2.0
"""A training that is often quiet and never hangs. Argument 1: the number of seconds that it runs. SIGUSR1 opens pdb."""
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

COMPILES, SAVES, BETWEEN_SAVES = 55, 40, 200  # seconds

signal.signal(signal.SIGUSR1, lambda *_: breakpoint())
dist.init_process_group("gloo")
rank, begin = dist.get_rank(), time.monotonic()
if rank == 0:
    while time.monotonic() < begin + COMPILES:  # the others wait in the first all-reduce
        pass
next_save = time.monotonic() + BETWEEN_SAVES
step = saves = 0
go_on = torch.ones(1)
while go_on.item():
    go_on.fill_(time.monotonic() < begin + float(sys.argv[1]))
    dist.all_reduce(go_on, op=dist.ReduceOp.MIN)
    step += 1
    if step == 1:
        print(f"rank {rank} is process {os.getpid()}", flush=True)
    time.sleep(0.05)
    save = torch.tensor([float(time.monotonic() > next_save)])
    dist.broadcast(save, 0)
    if save.item():
        saves += 1
        if rank == 0:
            time.sleep(SAVES)  # like one write to a slow disk, which shows neither CPU time nor bytes
            next_save = time.monotonic() + BETWEEN_SAVES
        dist.barrier()
print(f"rank {rank} is done: {saves} checkpoints", flush=True)
