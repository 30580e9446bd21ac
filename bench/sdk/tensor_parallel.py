#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tensor_parallel_bench.cc in Python, for bench/run.py: PyTorch's ColwiseParallel and RowwiseParallel
with gloo, one compute thread per rank.

    torchrun … bench/sdk/tensor_parallel.py STEPS
"""
import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WARM_UP_STEPS, BATCH, WIDTH, HIDDEN = 5, 64, 1024, 4096


def main(num_steps):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))
    x = torch.randn(BATCH, WIDTH).requires_grad_()
    target = torch.randn(BATCH, WIDTH)
    net = parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    times = []
    for step in range(-WARM_UP_STEPS, num_steps):
        begin = time.perf_counter()
        loss = F.mse_loss(net(x), target)
        optimizer.zero_grad()
        x.grad = None
        loss.backward()
        optimizer.step()
        if step >= 0:
            times.append(1000 * (time.perf_counter() - begin))
    loss = loss.item()
    dist.barrier()
    if dist.get_rank() == 0:
        print(json.dumps({"step_ms": statistics.median(times), "loss": loss, "ranks": dist.get_world_size()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
