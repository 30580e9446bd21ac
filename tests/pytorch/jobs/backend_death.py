# SPDX-License-Identifier: Apache-2.0
"""Rank 1 is killed while the others wait for it. They print how long the wait took, and the error."""
import os
import signal
import time

import torch
import torch.distributed as dist

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ddprun sends it soon after the death
dist.init_process_group("ddprun", init_method="file://" + os.environ["DEATH"] + ".store", rank=int(os.environ["RANK"]),
                        world_size=3)
rank = dist.get_rank()
dist.all_reduce(torch.ones(1))
if rank == 1:
    with open(os.environ["DEATH"], "w") as file:
        file.write(str(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)
try:
    if rank == 0:
        dist.all_reduce(torch.ones(1000))
    else:
        dist.all_reduce(torch.ones(1000), async_op=True).get_future().wait()
except RuntimeError as error:
    told = time.monotonic()
    with open(os.environ["DEATH"]) as file:
        print("told after %.3f s: %s" % (told - float(file.read()), str(error).splitlines()[0]), flush=True)
