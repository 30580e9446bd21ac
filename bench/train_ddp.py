#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""apps/train in Python, for bench/run.py: the same net, data, batches, optimiser and threads under
PyTorch's DistributedDataParallel with gloo. Written as a careful user would: all images in one tensor,
no DataLoader workers, one compute thread per rank, default DDP and optimiser.

    torchrun --standalone --nproc_per_node=2 bench/train_ddp.py [--epochs N] [--json FILE]

Rank 0 prints a line per epoch, then one JSON line (as `train --json` writes it).
"""
import time

START = time.perf_counter()

import argparse  # noqa: E402
import gzip  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import statistics  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data import DistributedSampler  # noqa: E402

DIGITS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data/digits")


class Net(torch.nn.Module):
    """The net of PyTorch's MNIST example, unchanged."""

    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 32, 3)
        self.conv2 = torch.nn.Conv2d(32, 64, 3)
        self.dropout1 = torch.nn.Dropout(0.25)
        self.dropout2 = torch.nn.Dropout(0.5)
        self.fc1 = torch.nn.Linear(9216, 128)
        self.fc2 = torch.nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = self.dropout2(F.relu(self.fc1(torch.flatten(x, 1))))
        return F.log_softmax(self.fc2(x), dim=1)


def read_idx(name, header):
    with gzip.open(f"{DIGITS}/{name}-ubyte.gz") as f:
        return torch.frombuffer(bytearray(f.read()[header:]), dtype=torch.uint8)


def read_set(prefix):
    images = read_idx(f"{prefix}-images-idx3", 16).reshape(-1, 1, 28, 28).float()
    return images.div_(255).sub_(0.1307).div_(0.3081), read_idx(f"{prefix}-labels-idx1", 8).long()


def evaluate(net, images, labels, rank, world):
    net.eval()
    with torch.no_grad():
        output = net(images[rank::world])
        mine = labels[rank::world]
        totals = torch.stack([F.nll_loss(output, mine, reduction="sum").double(),
                              (output.argmax(1) == mine).sum().double()])
    dist.all_reduce(totals)
    return (totals / len(labels)).tolist()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="per step, of all ranks together")
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    threads = max(1, os.cpu_count() // int(os.environ.get("LOCAL_WORLD_SIZE", world)))
    torch.set_num_threads(threads)
    images, labels = read_set("train")
    test_images, test_labels = read_set("t10k")

    torch.manual_seed(args.seed)
    net = Net()
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.Adadelta(ddp.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=args.gamma)
    sampler = DistributedSampler(images, world, rank, seed=args.seed)
    torch.manual_seed(args.seed + 1 + rank)
    batch_size = -(-args.batch_size // world)
    steps_ms, epochs = [], []
    for epoch in range(args.epochs):
        net.train()
        sampler.set_epoch(epoch)
        begin = time.perf_counter()
        total = torch.zeros((), dtype=torch.float64)
        for batch in torch.tensor(list(sampler)).split(batch_size):
            step = time.perf_counter()
            optimizer.zero_grad()
            loss = F.nll_loss(ddp(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(batch)
            steps_ms.append((time.perf_counter() - step) * 1e3)
        dist.all_reduce(total)
        seconds = time.perf_counter() - begin
        scheduler.step()
        test_loss, accuracy = evaluate(net, test_images, test_labels, rank, world)
        num_samples = len(sampler) * world
        epochs.append({"epoch": epoch + 1, "train_loss": total.item() / num_samples,
                       "test_loss": test_loss, "test_accuracy": accuracy, "seconds": seconds,
                       "samples_per_second": num_samples / seconds})
        if rank == 0:
            print(f"epoch {epoch + 1}/{args.epochs}  loss {epochs[-1]['train_loss']:.4f}  "
                  f"test accuracy {accuracy:.4f}", flush=True)
    if rank == 0:
        summary = json.dumps({
            "world_size": world, "backend": "gloo", "threads": threads,
            "test_accuracy": epochs[-1]["test_accuracy"],
            "median_step_ms": statistics.median(steps_ms),
            "wall_seconds": time.perf_counter() - START, "epochs": epochs})
        print(summary, flush=True)
        if args.json:
            with open(args.json, "w") as f:
                f.write(summary + "\n")
    dist.barrier()  # otherwise gloo's threads may abort the process at its exit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
