#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""step_bench.cc in Python, for bench/run.py. It has the same nets, inputs and optimiser under PyTorch's
DistributedDataParallel with gloo, or on GPUs with NCCL, one compute thread per rank.

    torchrun … bench/sdk/step_ddp.py resnet18|mlp|gpt2 STEPS [none|bf16 [cpu|cuda]]
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
TEXTS_PER_RANK, TOKENS, VOCABULARY, WIDTH, HEADS = 8, 512, 50257, 768, 12


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


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.attention(self.norm1(x)).view(*x.shape[:2], 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4).unbind()
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(1024, WIDTH)
        nn.init.normal_(self.words.weight, std=0.02)
        self.layers, self.norm = nn.Sequential(*(Layer() for _ in range(12))), nn.LayerNorm(WIDTH)

    def forward(self, ids):
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return F.linear(self.norm(self.layers(x)), self.words.weight).flatten(0, 1)


def task(model):
    """Returns net, input, labels."""
    if model == "resnet18":
        return resnet18(), torch.randn(IMAGES_PER_RANK, 3, 32, 32), torch.randint(10, (IMAGES_PER_RANK,))
    if model == "mlp":
        return mlp(), torch.randn(ROWS_PER_RANK, 1024), torch.randint(10, (ROWS_PER_RANK,))
    return (Gpt2(), torch.randint(VOCABULARY, (TEXTS_PER_RANK, TOKENS)),
            torch.randint(VOCABULARY, (TEXTS_PER_RANK * TOKENS,)))


def main(model, num_steps, compression="none", kind="cpu"):
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if kind == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    torch.manual_seed(1)
    net, x, labels = (each.to(device) for each in task(model))
    ddp = DistributedDataParallel(net, gradient_as_bucket_view=True)
    if compression == "bf16":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
        ddp.register_comm_hook(None, bf16_compress_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    times = []
    for step in range(-WARM_UP_STEPS, int(num_steps)):
        begin = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=model == "gpt2"):
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
