# SPDX-License-Identifier: Apache-2.0
"""An elastic PyTorch DDP job over gloo: its own checkpoints, any number of ranks that divides the batch.

    elastic.py DIRECTORY     shared by all ranks

The whole batch of a step is the same however many ranks share it. So every run ends with the same parameters, but
for rounding. DIRECTORY gets checkpoint.pt (each 10 steps), steps (one line per step of rank 0: round, world size,
step) and result.json."""
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, CHECKPOINT_EVERY, BATCH, CLASSES = 240, 10, 32, 4
STEP_SECONDS = 0.02


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, CLASSES)).double()


def labelled(seed, count):
    """Returns points, and the classes that a fixed random map gives them."""
    generator = torch.Generator().manual_seed(99)
    truth = torch.randn(8, CLASSES, generator=generator, dtype=torch.double)
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    return x, (x @ truth).argmax(dim=1)


def main():
    directory = sys.argv[1]
    checkpoint = os.path.join(directory, "checkpoint.pt")
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    net = model()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    begin = torch.zeros(1, dtype=torch.long)
    if rank == 0 and os.path.exists(checkpoint):
        saved = torch.load(checkpoint)
        net.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        begin[0] = saved["steps"]
    # Momentum lives on every rank. Ranks without a file get it from rank 0.
    dist.broadcast(begin, 0)
    state = [optimiser.state_dict()]
    dist.broadcast_object_list(state, 0)
    optimiser.load_state_dict(state[0])
    ddp = DistributedDataParallel(net)  # sends rank 0's parameters to all
    share = BATCH // world_size
    for step in range(int(begin) + 1, STEPS + 1):
        x, y = labelled(step, BATCH)
        mine = slice(rank * share, (rank + 1) * share)
        optimiser.zero_grad()
        nn.functional.cross_entropy(ddp(x[mine]), y[mine]).backward()
        optimiser.step()
        if rank == 0:
            with open(os.path.join(directory, "steps"), "a") as f:
                f.write(f"{os.environ['DDPRUN_ROUND']} {world_size} {step}\n")
            if step % CHECKPOINT_EVERY == 0:
                torch.save({"model": net.state_dict(), "optimiser": optimiser.state_dict(),
                            "steps": step}, checkpoint + ".part")
                os.replace(checkpoint + ".part", checkpoint)
        time.sleep(STEP_SECONDS)
    if rank == 0:
        x, y = labelled(0, 1000)
        with torch.no_grad():
            accuracy = (net(x).argmax(dim=1) == y).double().mean().item()
        numbers = torch.cat([p.detach().flatten() for p in net.parameters()]).tolist()
        with open(os.path.join(directory, "result.json"), "w") as f:
            json.dump({"accuracy": accuracy, "parameters": numbers}, f)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # PyTorch 2.15 aborts an exit in which one of gloo's threads drops a tensor


if __name__ == "__main__":
    main()
