# SPDX-License-Identifier: Apache-2.0
"""A rank of a gloo job. Writes into a folder when its first DDP step has ended. With `crash` rank 1 then ends round 1.

    warm_worker.py FOLDER [crash]
"""
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def first_step_done(folder, *crash):
    def say(name):
        with open(os.path.join(folder, name), "w", encoding="ascii") as file:
            file.write(str(time.monotonic_ns()))

    has_crashed = os.path.exists(os.path.join(folder, "death"))  # torchrun's count of restarts differs between the nodes
    say(f"{int(has_crashed)}.{dist.get_rank()}")
    if crash and not has_crashed:
        time.sleep(3)  # real ranks have trained for longer before they crash
        dist.barrier()
        if dist.get_rank() == 1:
            say("death")
            os._exit(1)
        signal.pause()  # the other ranks wait until they are stopped


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 16)).sum().backward()
    optimizer.step()
    first_step_done(*sys.argv[1:])
    dist.barrier()  # otherwise gloo's threads may abort the process at its exit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
