# SPDX-License-Identifier: Apache-2.0
"""The job of ddp.py with checkpoints of its own. Its rank 1 ends in the middle of the first round.

    come_back.py DIRECTORY     shared by all ranks

After the restart the loss is that of one process that had the whole batch and no restart."""
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ddp

LAST_STEP_OF_FIRST_ROUND = 6


def loss(net, world_size):
    with torch.no_grad():
        return sum(torch.nn.functional.mse_loss(net(x), y).item() for x, y in ddp.batches(world_size))


def main():
    checkpoint = os.path.join(sys.argv[1], "checkpoint.pt")
    is_first_round = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    net, begin = ddp.model(), 0
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint)
        net.load_state_dict(saved["model"])
        begin = saved["step"]

    def before_step(step):
        if rank == 0:
            torch.save({"model": net.state_dict(), "step": step}, checkpoint + ".part")
            os.replace(checkpoint + ".part", checkpoint)
        elif is_first_round and step == LAST_STEP_OF_FIRST_ROUND:
            sys.exit(5)

    ddp.train(DistributedDataParallel(net), slice(rank * 4, rank * 4 + 4), world_size, begin, before_step)
    undisturbed = ddp.model()
    ddp.train(undisturbed, slice(None), world_size)
    ours, theirs = loss(net, world_size), loss(undisturbed, world_size)
    assert abs(ours - theirs) < 1e-12, (ours, theirs)
    print(f"rank {rank} came back at step {begin}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # PyTorch 2.15 aborts an exit in which one of gloo's threads drops a tensor


if __name__ == "__main__":
    main()
