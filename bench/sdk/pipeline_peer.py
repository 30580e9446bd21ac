#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pipeline_bench.cc in Python, for bench/run.py: the same net and batch by torch.distributed.pipelining's Schedule1F1B
with gloo, one compute thread per rank.

    torchrun … bench/sdk/pipeline_peer.py STEPS [MICRO_BATCHES]
"""
import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WARM_UP_STEPS, LAYERS_PER_STAGE, WIDTH, ROWS = 3, 6, 768, 512


def stage_of_mlp():
    return nn.Sequential(*(layer for _ in range(LAYERS_PER_STAGE) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))


def main(num_steps, num_micro_batches="8"):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    own = stage_of_mlp()
    x, y = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
    stage = PipelineStage(own, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, int(num_micro_batches), loss_fn=nn.functional.mse_loss)
    arguments = {"target": y} if rank == size - 1 else {}
    inputs = (x,) if rank == 0 else ()
    times = []
    for step in range(-WARM_UP_STEPS, int(num_steps)):
        for parameter in own.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        dist.barrier()
        begin = time.perf_counter()
        schedule.step(*inputs, **arguments)
        dist.barrier()
        if step >= 0:
            times.append(1000 * (time.perf_counter() - begin))
    if rank == 0:
        print(json.dumps({"step_ms": statistics.median(times), "ranks": size}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
