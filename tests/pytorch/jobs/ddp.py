# SPDX-License-Identifier: Apache-2.0
"""An ordinary PyTorch DDP job over gloo. Every rank must end with the parameters that one process gets from the whole
batch."""
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 10


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).double()


def batches(world_size):
    generator = torch.Generator().manual_seed(2)
    for _ in range(STEPS):
        yield (torch.randn(world_size * 4, 8, generator=generator, dtype=torch.double),
               torch.randn(world_size * 4, 4, generator=generator, dtype=torch.double))


def train(net, take, world_size, begin=0, before_step=lambda step: None):
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    for step, (x, y) in enumerate(batches(world_size)):
        if step < begin:
            continue
        before_step(step)
        optimiser.zero_grad()
        nn.functional.mse_loss(net(x[take]), y[take]).backward()
        optimiser.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def main():
    dist.init_process_group("gloo", init_method="env://")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ours = train(DistributedDataParallel(model()), slice(rank * 4, rank * 4 + 4), world_size)
    alone = train(model(), slice(None), world_size)
    difference = ((ours - alone).norm() / alone.norm()).item()
    assert difference < 1e-12, difference
    total = torch.tensor([rank])
    dist.all_reduce(total)
    assert total.item() == world_size * (world_size - 1) // 2
    print(f"trained rank {rank} of {world_size}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # PyTorch 2.15 aborts an exit in which one of gloo's threads drops a tensor


if __name__ == "__main__":
    main()
