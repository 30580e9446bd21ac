# SPDX-License-Identifier: Apache-2.0
"""Writes the expected results of communication hooks, from PyTorch's DDP with its own hooks, and from references
after the definitions in docs/internals/compression.md. Also writes the gradients for hook_worker.

    hooks_twin.py DIR WORLD HOOK…

writes DIR/shapes, DIR/layout (one line per bucket as hook_worker prints them), DIR/gradients.RANK,
DIR/HOOK.expected, for PowerSGD DIR/HOOK.seeds (hook_worker's state to start with) and DIR/HOOK.errors.RANK. A
parameter's gradient in `loss = Σ parameter · g` is g, so all sides average the same numbers.
"""
import math
import os
import sys
import traceback

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

SHAPES = [(20, 64), (33,), (40, 300), (8, 3, 3, 3), (5, 7), (64, 20), (300,)]
COUNTS = [math.prod(shape) for shape in SHAPES]
NUM_ITERATIONS = 5
FIRST_BYTES, CAP_BYTES = 1024, 16384
PADDING = 16  # a gradient starts at a multiple of so many elements


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.zeros(shape) for shape in SHAPES])

    def forward(self, gradients):
        return sum((w * g).sum() for w, g in zip(self.weights, gradients))


def gradients_of(rank):
    """Returns gradients by iteration and parameter: a part that all ranks share, and noise, of several magnitudes."""
    common, own = torch.Generator().manual_seed(5), torch.Generator().manual_seed(100 + rank)
    return [[(torch.randn(shape, generator=common) + 0.5 * torch.randn(shape, generator=own)) * 10.0 ** (i % 4 - 3)
             for i, shape in enumerate(SHAPES)] for _ in range(NUM_ITERATIONS)]


def write(path, tensors):
    with open(path, "wb") as f:
        for tensor in tensors:
            f.write(tensor.detach().contiguous().numpy().tobytes())


# The references.

def layout():
    """Returns the buckets of the first iteration and of the others: [(elements, {parameter: first element})]."""
    def lay_out(indices):
        places, end = {}, 0
        for i in indices:
            places[i] = end
            end += -(-COUNTS[i] // PADDING) * PADDING
        return end, places

    later, bucket, limit = [], [], FIRST_BYTES
    for i in reversed(range(len(SHAPES))):
        bucket.append(i)
        if sum(4 * COUNTS[j] for j in bucket) >= limit:
            later.append(lay_out(bucket))
            bucket, limit = [], CAP_BYTES
    return [lay_out(range(len(SHAPES)))], later + ([lay_out(bucket)] if bucket else [])


def int8_average(ranks_buckets):
    total = torch.zeros_like(ranks_buckets[0])
    for bucket in ranks_buckets:
        for begin in range(0, len(bucket), 256):
            block = bucket[begin:begin + 256]
            largest = block.abs().max()
            if largest >= 1e-36:
                total[begin:begin + 256] += largest / 127 * torch.round(block * (127 / largest))
    return total / len(ranks_buckets)


def top_k_average(ranks_buckets, k):
    """Returns the average. Changes each bucket to the rest that isn't sent, its rank's error."""
    total = torch.zeros_like(ranks_buckets[0])
    for bucket in ranks_buckets:
        chosen = torch.argsort(bucket.abs(), descending=True, stable=True)[:k]
        total[chosen] += bucket[chosen]
        bucket[chosen] = 0
    return total / len(ranks_buckets)


def reference(hook, world):
    """Returns the averages, by iteration and parameter."""
    first, later = layout()
    errors = [[torch.zeros(count) for count in COUNTS] for _ in range(world)]
    averages = []
    for iteration, all_ranks in enumerate(zip(*[gradients_of(rank) for rank in range(world)])):
        of_iteration = [None] * len(SHAPES)
        for length, places in later if iteration else first:
            buckets = [torch.zeros(length) for _ in range(world)]
            for bucket, gradients, error in zip(buckets, all_ranks, errors):
                for i, begin in places.items():
                    bucket[begin:begin + COUNTS[i]] = gradients[i].flatten() + error[i]
            if hook == "int8":
                average = int8_average(buckets)
            else:
                num = sum(COUNTS[i] for i in places)
                average = top_k_average(buckets, max(1, math.floor(float(hook.split(":")[1]) * num + 0.5)))
                for bucket, error in zip(buckets, errors):
                    for i, begin in places.items():
                        error[i] = bucket[begin:begin + COUNTS[i]].clone()
            for i, begin in places.items():
                of_iteration[i] = average[begin:begin + COUNTS[i]]
        averages += of_iteration
    return averages


# PyTorch's own hooks.

class PowerSgd:
    """PyTorch's hook with initial Qs. hook_worker gets the same."""

    def __init__(self, name, net):
        _, rank, start = name.split(":")
        self.index = {id(p): i for i, p in enumerate(net.weights)}
        self.state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=int(rank), start_powerSGD_iter=int(start))
        self.qs = {}
        generator = torch.Generator().manual_seed(9)
        for i, shape in enumerate(SHAPES):
            n, m = shape[0], COUNTS[i] // shape[0]
            r = min(n, m, int(rank))
            if (n + m) * r * self.state.min_compression_rate < n * m:
                self.qs[i] = torch.randn(m, r, generator=generator)

    def hook(self, state, bucket):
        self.order = [self.index[id(p)] for p in bucket.parameters()]
        if state.iter >= state.start_powerSGD_iter and not state.q_memory_dict:
            assert bucket.is_last() and bucket.index() == 0
            qs = [self.qs[i] for i in self.order if i in self.qs]
            state.q_memory_dict[0] = torch.cat([q.flatten() for q in qs])
            num_p = sum(SHAPES[i][0] * self.qs[i].shape[1] for i in self.order if i in self.qs)
            state.p_memory_dict[0] = torch.zeros(num_p)
        return powerSGD_hook.powerSGD_hook(state, bucket)

    def seeds(self):
        return [torch.zeros(1, dtype=torch.int64), *(q.T for q in self.qs.values()),
                *(torch.zeros(COUNTS[i]) for i in self.qs)]

    def errors(self):
        parts = dict(zip(self.order, self.state.error_dict[0].split([COUNTS[i] for i in self.order])))
        return [parts[i] for i in self.qs]


def run_rank(directory, rank, world, hooks):
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(directory, "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    for hook in hooks:
        net = Net()
        ddp = DistributedDataParallel(net)
        power_sgd = PowerSgd(hook, net) if hook.startswith("powersgd") else None
        if power_sgd:
            ddp.register_comm_hook(power_sgd.state, power_sgd.hook)
        else:
            ddp.register_comm_hook(None, getattr(default_hooks, hook + "_compress_hook"))
        averages = []
        for gradients in gradients_of(rank):
            net.zero_grad()
            ddp(gradients).backward()
            averages += [w.grad.clone() for w in net.weights]
        if rank == 0:
            write(f"{directory}/{hook}.expected", averages)
        if power_sgd:
            write(f"{directory}/{hook}.seeds", power_sgd.seeds())
            write(f"{directory}/{hook}.errors.{rank}", power_sgd.errors())
    dist.destroy_process_group()


def main(directory, world, *hooks):
    world = int(world)
    torch.set_num_threads(1)
    with open(os.path.join(directory, "shapes"), "w") as f:
        f.writelines(" ".join(map(str, shape)) + "\n" for shape in SHAPES)
    with open(os.path.join(directory, "layout"), "w") as f:
        for buckets in layout():
            for length, places in buckets:
                print(length, *(f"{i}:{begin}" for i, begin in places.items()), file=f)
    torchs = [hook for hook in hooks if hook[:4] in ("fp16", "bf16", "powe")]
    children = []
    for rank in range(world):
        write(f"{directory}/gradients.{rank}", [g for step in gradients_of(rank) for g in step])
        child = os.fork()
        if child == 0:  # a fork, so that all children use one import of PyTorch
            try:
                run_rank(directory, rank, world, torchs)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.append(child)
    for hook in hooks:
        if hook not in torchs:
            write(f"{directory}/{hook}.expected", reference(hook, world))
    sys.exit(max([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))


if __name__ == "__main__":
    main(*sys.argv[1:])
