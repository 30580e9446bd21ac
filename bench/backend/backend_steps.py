#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker that times a backend of torch.distributed: all-reduces, and training steps of the digits' network.

    ddprun --standalone --nproc_per_node=2 backend_steps.py ddprun|gloo      rank 0 prints one JSON line of medians
"""
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python"))
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

if sys.argv[1] == "ddprun":
    import ddprun.torch  # noqa: F401  # a clone of the repository has no entry point

WARM_UP = 5


def median_of(count, once, barrier=dist.barrier):
    times = []
    for i in range(-WARM_UP, count):
        barrier()
        start = time.perf_counter()
        once()
        if i >= 0:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def all_reduce(size_bytes, count):
    tensor = torch.zeros(size_bytes // 4)
    return median_of(count, lambda: dist.all_reduce(tensor))


def step(wrap, count):
    torch.manual_seed(1)
    network = nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5, padding=2),
                            nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 49, 10))
    model = wrap(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    images, labels = torch.randn(50, 1, 28, 28), torch.randint(0, 10, (50,))

    def once():
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return median_of(count, once)


def main():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group(sys.argv[1])
    found = {"small_us": all_reduce(4096, 500) * 1e6, "large_ms": all_reduce(25 << 20, 30) * 1e3,
             "alone_ms": step(lambda network: network, 60) * 1e3,
             "ddp_ms": step(nn.parallel.DistributedDataParallel, 60) * 1e3, "fsdp_ms": step(fully_shard, 60) * 1e3}
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()  # otherwise gloo's threads may abort the process at its exit
    dist.destroy_process_group()


main()
