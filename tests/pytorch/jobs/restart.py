# SPDX-License-Identifier: Apache-2.0
"""A gloo job in which the last rank dies in the middle of every round but the last (the argument is
the number of restarts). Each round must find its peers afresh and work until then."""
import os
import signal
import sys

import torch
import torch.distributed as dist


def main():
    restarts = int(sys.argv[1])
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dist.new_group(list(range(world_size)))
    for step in range(5):
        value = torch.full([1000], float(rank + attempt + step))
        dist.all_reduce(value)
        assert value[0] == sum(range(world_size)) + world_size * (attempt + step), (attempt, value[0])
    print(f"attempt {attempt}: rank {rank} works", flush=True)
    dist.barrier()
    if attempt < restarts:
        if rank == world_size - 1:
            os.kill(os.getpid(), signal.SIGKILL if attempt % 2 else signal.SIGTERM)
        dist.barrier()  # the peer is dead: this fails, or we are stopped in it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
