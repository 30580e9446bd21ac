# SPDX-License-Identifier: Apache-2.0
"""A rank of a gloo job. Says in a folder when its first DDP step has ended. With `crash` rank 1 then ends the first round.

    warm_worker.py FOLDER [crash]
"""
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def say(name):
    with open(os.path.join(sys.argv[1], name), "w", encoding="ascii") as file:
        file.write(str(time.monotonic_ns()))


dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(4, 16)).sum().backward()
optimizer.step()
restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
say(f"{restarts}.{dist.get_rank()}")
if restarts == "0" and sys.argv[2:] == ["crash"]:
    dist.barrier()
    if dist.get_rank() == 1:
        say("death")
        os._exit(1)
    time.sleep(600)  # the others are stopped
dist.destroy_process_group()
