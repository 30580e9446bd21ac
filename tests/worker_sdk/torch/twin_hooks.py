# SPDX-License-Identifier: Apache-2.0
"""Communication hooks for modes_twin.py, in PyTorch's DDP. Some are its own (fp16_pytorch, bf16_pytorch, PowerSGD). The
others follow docs/internals/compression.md as a DDP hook, with our buckets (fp16, bf16, int8, top-k). PyTorch has
the model in one bucket. If no rank uses a parameter, the hook's effect on it is undone; PyTorch would lose it."""
import math

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from hooks_twin import PADDING, int8_average, top_k_average

HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}


def read_plans(path):
    """Returns our buckets: those of the first iteration, and those of the others."""
    with open(path) as f:
        first, later = f.read().strip().split("\n\n")
    return [[[int(i) for i in line.split()] for line in plan.splitlines()] for plan in (first, later)]


class TwinHook:
    """`unused(iteration)`: the indices of the parameters that no rank uses. `scale(iteration)`: the factor of the
    averages."""

    def __init__(self, name, net, path, unused, scale):
        self.name, self.unused, self.scale = name, unused, scale
        self.parameters = list(net.parameters())
        self.index = {id(p): i for i, p in enumerate(self.parameters)}
        self.iteration = 0
        if name.startswith("powersgd"):
            _, rank, start = name.split(":")
            self.state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=int(rank),
                                                     start_powerSGD_iter=int(start))
            self.qs = self.read_qs(path + ".q", int(rank))
        else:
            self.plans = read_plans(path + ".plan")
            self.errors = [[torch.zeros(p.numel()) for p in self.parameters] for _ in range(dist.get_world_size())]

    def read_qs(self, path, max_rank):
        """Returns the first Qs by parameter. Our file has them transposed, one after the other."""
        with open(path, "rb") as f:
            values = torch.frombuffer(bytearray(f.read()), dtype=torch.float32)
        qs, begin = {}, 0
        for i, parameter in enumerate(self.parameters):
            n, m = parameter.shape[0], parameter.numel() // parameter.shape[0]
            rank = min(n, m, max_rank)
            if parameter.dim() > 1 and (n + m) * rank * 2 < n * m:
                qs[i] = values[begin:begin + m * rank].view(rank, m).T
                begin += m * rank
        assert begin == len(values) > 0
        return qs

    def run(self, _, bucket):
        assert bucket.index() == 0 and bucket.is_last()
        if self.name.startswith("powersgd"):
            self.power_sgd(bucket)
        elif self.name.endswith("_pytorch"):
            hook = getattr(default_hooks, self.name.replace("_pytorch", "_compress_hook"))
            bucket.buffer().copy_(hook(dist.group.WORLD, bucket).wait())
        else:
            self.by_definition(bucket)
        bucket.buffer().mul_(self.scale(self.iteration))
        self.iteration += 1
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    def places(self, bucket):
        """Returns [(parameter's index, its part of the bucket)], in the bucket's order."""
        return [(self.index[id(p)], g) for p, g in zip(bucket.parameters(), bucket.gradients())]

    def power_sgd(self, bucket):
        state, places = self.state, self.places(bucket)
        if state.iter >= state.start_powerSGD_iter and not state.q_memory_dict:
            by_shape = {}  # PyTorch lays them out in this order
            for i, _ in places:
                if i in self.qs:
                    by_shape.setdefault(self.parameters[i].shape, []).append(self.qs[i].flatten())
            state.q_memory_dict[0] = torch.cat(sum(by_shape.values(), []))
            num_p = sum(self.parameters[i].shape[0] * self.qs[i].shape[1] for i, _ in places if i in self.qs)
            state.p_memory_dict[0] = torch.zeros(num_p)
        before = {i: g.clone() for i, g in places}
        bucket.buffer().copy_(powerSGD_hook.powerSGD_hook(state, bucket).wait())
        errors = state.error_dict[0].split([g.numel() for _, g in places]) if 0 in state.error_dict else None
        for place, (i, gradient) in enumerate(places):
            if i in self.unused(self.iteration):
                if errors:
                    errors[place].add_((gradient - before[i]).flatten())
                gradient.zero_()

    def by_definition(self, bucket):
        """Averages by the definition: each rank gathers the gradients of all ranks, and does the work of all."""
        everyones = [torch.empty_like(bucket.buffer()) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, bucket.buffer())
        places = self.places(bucket)
        sizes = [g.numel() for _, g in places]
        gradients = [dict(zip((i for i, _ in places), flat.split(sizes))) for flat in everyones]
        averages = {}
        for indices in self.plans[self.iteration > 0]:
            begins, end = {}, 0
            for i in indices:
                begins[i] = end
                end += -(-self.parameters[i].numel() // PADDING) * PADDING
            averages.update(self.average_of(begins, end, gradients))
        for i, gradient in places:
            if i not in self.unused(self.iteration):
                gradient.copy_(averages[i].view_as(gradient))
                continue
            for of_rank, errors in zip(gradients, self.errors):
                errors[i] += averages[i] - of_rank[i]
            gradient.zero_()

    def average_of(self, begins, end, gradients):
        slices = {i: slice(begin, begin + self.parameters[i].numel()) for i, begin in begins.items()}
        buckets = [torch.zeros(end) for _ in gradients]
        has_errors = self.name.startswith("topk")
        for flat, of_rank, errors in zip(buckets, gradients, self.errors):
            for i, place in slices.items():
                flat[place] = of_rank[i] + errors[i]
        if has_errors:
            count = sum(self.parameters[i].numel() for i in slices)
            average = top_k_average(buckets, max(1, math.floor(float(self.name.split(":")[1]) * count + 0.5)))
            for flat, errors in zip(buckets, self.errors):
                for i, place in slices.items():
                    errors[i] = flat[place].clone()
        elif self.name == "int8":
            average = int8_average(buckets)
        else:
            total = sum(flat.to(HALF[self.name]).float() for flat in buckets)
            average = (total / len(buckets)).to(HALF[self.name]).float()
        return {i: average[place] for i, place in slices.items()}
