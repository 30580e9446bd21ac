#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""step_bench.cc in Python, for bench/run.py: the same nets, inputs and optimiser under PyTorch's
DistributedDataParallel with gloo, or on GPUs with NCCL, one compute thread per rank.

    torchrun … bench/sdk/step_ddp.py resnet18|mlp STEPS [none|bf16 [cpu|cuda]]
"""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WARM_UP_STEPS, IMAGES_PER_RANK, ROWS_PER_RANK = 5, 16, 64


def conv(inputs, outputs, kernel, stride):
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.norm1 = conv(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = conv(outputs, outputs, 3, 1), nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.past = nn.Identity() if same else nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu_(self.norm1(self.conv1(x)))))
        return F.relu_(y + self.past(x))


def resnet18():
    layers, channels = [conv(3, 64, 3, 1), nn.BatchNorm2d(64), nn.ReLU()], 64
    for width in (64, 128, 256, 512):
        layers += [Block(channels, width, 1 if width == channels else 2), Block(width, width, 1)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def mlp():
    return nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(),
                         nn.Linear(2048, 124), nn.ReLU(), nn.Linear(124, 10))


def main(model, num_steps, compression="none", kind="cpu"):
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if kind == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    torch.manual_seed(1)
    net = (resnet18() if model == "resnet18" else mlp()).to(device)
    x = torch.randn(IMAGES_PER_RANK, 3, 32, 32) if model == "resnet18" else torch.randn(ROWS_PER_RANK, 1024)
    x, labels = x.to(device), torch.randint(10, (len(x),)).to(device)
    ddp = DistributedDataParallel(net, gradient_as_bucket_view=True)
    if compression == "bf16":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
        ddp.register_comm_hook(None, bf16_compress_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    times = []
    for step in range(-WARM_UP_STEPS, int(num_steps)):
        begin = time.perf_counter()
        loss = F.cross_entropy(ddp(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if kind == "cuda":
            torch.cuda.synchronize()
        if step >= 0:
            times.append(1000 * (time.perf_counter() - begin))
    dist.barrier()
    if dist.get_rank() == 0:
        print(json.dumps({"step_ms": statistics.median(times), "ranks": dist.get_world_size()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
