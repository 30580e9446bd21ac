# SPDX-License-Identifier: Apache-2.0
"""Does the same as ddp_worker.cc's `equality`, with the same net, data, order and optimiser, by PyTorch's DDP.

    pytorch_twin.py DTYPES ACCUMULATE WEIGHTS DATA_DIR OUT  one rank; writes OUT.<dtype>.<rank>
    pytorch_twin.py --make-weights FILE                     initial state; prints names and counts
"""
import contextlib
import gzip
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

NUM_STEPS, BATCH_SIZE = 20, 8


class SmallNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.fc1 = torch.nn.Linear(676, 32)
        self.fc2 = torch.nn.Linear(32, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2).flatten(1)
        return F.log_softmax(self.fc2(torch.tanh(self.fc1(x))), 1)


def state_of(net):
    return [*net.named_parameters(), *net.named_buffers()]


def save_state(net, path):
    with open(path, "wb") as f:
        for _, tensor in state_of(net):
            f.write(tensor.detach().double().contiguous().numpy().tobytes())


def load_state(net, path):
    with open(path, "rb") as f, torch.no_grad():
        for _, tensor in state_of(net):
            values = torch.frombuffer(bytearray(f.read(8 * tensor.numel())), dtype=torch.float64)
            tensor.copy_(values.reshape(tensor.shape))


def read_idx(path, header):
    with gzip.open(path) as f:
        return torch.frombuffer(bytearray(f.read()[header:]), dtype=torch.uint8)


def run(dtypes, accumulate, weights, data, out):
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    store = dist.PrefixStore(f"twin{os.environ['DDPRUN_ROUND']}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    for dtype in dtypes.split(","):
        net = train(getattr(torch, dtype), int(accumulate), weights, data, rank, world)
        save_state(net, f"{out}.{dtype}.{rank}")
    dist.destroy_process_group()


def train(dtype, accumulate, weights, data, rank, world):
    net = SmallNet().to(dtype)
    load_state(net, weights)
    ddp = DistributedDataParallel(net, bucket_cap_mb=8192 / 2**20)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    pixels = read_idx(f"{data}/train-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)
    labels = read_idx(f"{data}/train-labels-idx1-ubyte.gz", 8)
    order = list(DistributedSampler(pixels, world, rank, shuffle=True, seed=3))
    position = 0
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        for part in range(accumulate):
            batch = [order[(position + i) % len(order)] for i in range(BATCH_SIZE)]
            position += BATCH_SIZE
            last = part + 1 == accumulate
            with contextlib.nullcontext() if last else ddp.no_sync():
                output = ddp(pixels[batch].to(dtype) / 255)
                (F.nll_loss(output, labels[batch].long()) / accumulate).backward()
        optimizer.step()
    return net


def make_weights(path):
    torch.manual_seed(12)
    net = SmallNet().double()
    save_state(net, path)
    for name, tensor in state_of(net):
        print(name, tensor.numel())


if __name__ == "__main__":
    if sys.argv[1] == "--make-weights":
        make_weights(sys.argv[2])
    else:
        run(*sys.argv[1:])
