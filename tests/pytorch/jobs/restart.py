# SPDX-License-Identifier: Apache-2.0
"""A job whose last rank dies in the middle of every round but the last one. Each round must find its peers anew and work
until then.

    restart.py RESTARTS [gloo|nccl [shared] [fault]]

shared: all ranks use GPU 0, and NCCL takes each for a host of its own. A shell around it could say so, but is no Python
that can be warm. fault: the rank dies of a device error."""
import os
import signal
import sys

import torch
import torch.distributed as dist


def main():
    restarts = int(sys.argv[1])
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    backend = sys.argv[2] if len(sys.argv) > 2 else "gloo"
    if "shared" in sys.argv:
        os.environ.update(NCCL_HOSTID=f"rank{os.environ['RANK']}", LOCAL_RANK="0")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dist.new_group(list(range(world_size)))
    for step in range(5):
        value = torch.full([1000], float(rank + attempt + step), device=device)
        dist.all_reduce(value)
        assert value[0] == sum(range(world_size)) + world_size * (attempt + step), (attempt, value[0])
    print(f"attempt {attempt}: rank {rank} works", flush=True)
    dist.barrier()
    if attempt < restarts:
        if rank == world_size - 1:
            if "fault" in sys.argv:
                torch.zeros(1, device=device)[torch.tensor([9], device=device)].item()
            os.kill(os.getpid(), signal.SIGKILL if attempt % 2 else signal.SIGTERM)
        dist.barrier()  # the peer is dead, so this fails, or the launcher stops this rank in it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
