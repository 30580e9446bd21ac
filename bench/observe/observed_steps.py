#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A plain PyTorch training that times its own steps, its waits for data, and in backward() for the other rank, whose
data take longer. Rank 0 prints one JSON line of seconds.

    ddprun --standalone --nproc_per_node=2 observed_steps.py STEPS
"""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        time.sleep(0.0005 * (1 + dist.get_rank()))  # a decoder's work
        return torch.full((1, 28, 28), index % 7 / 7), index % 10


def main():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 49, 10)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches, ended, waits, exposed = iter(DataLoader(Digits(), batch_size=16)), [], [], []
    computed = 0.0

    def is_computed():
        nonlocal computed
        computed = time.perf_counter()

    # Backward comes to the first parameter last. Its hook runs before DistributedDataParallel's, so this callback does, too:
    # the gradients are there, and nothing was waited for.
    next(model.parameters()).register_post_accumulate_grad_hook(
        lambda _: torch.autograd.Variable._execution_engine.queue_callback(is_computed))
    for _ in range(int(sys.argv[1])):
        begin = time.perf_counter()
        images, labels = next(batches)
        waits.append(time.perf_counter() - begin)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        exposed.append(time.perf_counter() - computed)
        optimizer.step()
        ended.append(time.perf_counter())
    steps = [end - begin for begin, end in zip(ended, ended[1:])]
    if dist.get_rank() == 0:
        print(json.dumps({"step": statistics.mean(steps), "loader": statistics.mean(waits[1:]),
                          "exposed": statistics.mean(exposed[1:]), "median_step": statistics.median(steps)}), flush=True)
    dist.barrier()  # otherwise gloo's threads may abort the process at its exit
    dist.destroy_process_group()


main()
