# SPDX-License-Identifier: Apache-2.0
"""ddp_modes_worker.cc's cases in Python: the same nets, data and optimiser under PyTorch's DDP.

    modes_twin.py OUT CASE…         one rank; writes OUT.<case>.<dtype>.<rank>
    modes_twin.py OUT CASE+HOOK@OURS…  with a hook of twin_hooks.py, only float32; buckets and Qs are those that
                                    ddp_modes_worker wrote to OURS.plan and OURS.q. Writes OUT.<case>+<hook>.…
"""
import contextlib
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn import Linear
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from twin_hooks import TwinHook

NUM_STEPS, BATCH_SIZE, WIDTH = 9, 4, 16
JOIN_STEPS = (9, 5, 0, 7), (5, 9, 7, 3)  # steps by epoch and rank


class BranchNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = Linear(8, WIDTH)
        self.norm = torch.nn.BatchNorm1d(WIDTH, affine=False)
        self.a, self.b, self.c = (Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = Linear(WIDTH, 1)

    def forward(self, x, use):
        h = torch.tanh(self.trunk(x))
        for part in use:
            if part == "n":
                h = self.norm(h)
            if part in "as":
                h = torch.tanh(self.a(h))
            if part == "b":
                h = torch.tanh(self.b(h))
            if part == "c":
                h = h + self.c(h)
            if part == "k":
                h = checkpoint(lambda x: torch.tanh(self.a(x)), h, use_reentrant=True)
        return self.head(h).squeeze(1), self.b(h) if "o" in use else None


PARTS = {"a": "a", "s": "a", "k": "a", "b": "b", "c": "c"}  # the part of the net that each letter uses


class Case:
    def __init__(self, accumulate=1, one_batch=False, zero_every=1, use=lambda s, p, r: "nabc", ignored=(), join=None,
                 momentum=0.9, static=False, **ddp):
        self.accumulate, self.one_batch, self.zero_every = accumulate, one_batch, zero_every
        self.use, self.ignored, self.join, self.momentum, self.ddp = use, ignored, join, momentum, ddp
        self.static = static or ddp.get("static_graph", False)  # also if PyTorch's DDP doesn't get the option

    def iterations(self, world):
        """Returns [(number of the step, ranks that take part)] of all iterations."""
        if self.join is None:
            return [(step, range(world)) for step in range(NUM_STEPS)]
        return [(50 * epoch + step, [r for r in range(world) if step < counts[r]])
                for epoch, counts in enumerate(JOIN_STEPS) for step in range(max(counts[:world]))]

    def unused(self, net, world):
        """Yields for each iteration the indices of parameters that no rank uses. Static: always the first one's."""
        iterations = self.iterations(world)
        for number, ranks in iterations[:1] * len(iterations) if self.static else iterations:
            used = {PARTS.get(letter) for rank in ranks for part in range(self.accumulate)
                    for letter in self.use(number, part, rank)}
            yield [i for i, (name, _) in enumerate(net.named_parameters())
                   if name[0] in "abc" and name[1] == "." and name[0] not in used]

    def scales(self, world):
        """Returns, by iteration, the factor of averages over all ranks."""
        effective = self.join is not None and not self.join.get("divide_by_initial_world_size", True)
        return [world / len(ranks) if effective else 1 for _, ranks in self.iterations(world)]


def varying(s, p, r):
    return ["na", "nb", "nab", "n"][(s + r) % 4]


def fixed(s, p, r):
    return "nas" if r % 2 == 0 else "nb"


CASES = {
    "unused": Case(find_unused_parameters=True, use=varying),
    "unused_keep": Case(find_unused_parameters=True, use=varying, zero_every=3),
    "unused_output": Case(find_unused_parameters=True, use=lambda s, p, r: "nao" if (s + r) % 3 else "nab"),
    "unused_accumulate": Case(find_unused_parameters=True, accumulate=2,
                              use=lambda s, p, r: "na" if p == 0 else "nb" if (s + r) % 2 else "n"),
    "static": Case(static_graph=True, use=fixed),
    # PyTorch's static_graph refuses no_sync in the first iteration. This case has the same result.
    "static_accumulate": Case(static=True, find_unused_parameters=True, use=fixed, accumulate=2),
    "checkpointed": Case(static_graph=True, use=lambda s, p, r: "nkk"),
    "ignored": Case(ignored=["a.weight", "norm.running_mean"]),
    "own_buffers": Case(forward_sync_buffers=False, accumulate=2),
    "accumulate": Case(accumulate=3, use=lambda s, p, r: "abc"),
    "big_batch": Case(accumulate=3, one_batch=True, use=lambda s, p, r: "abc"),
    "join": Case(join={}),
    "join_own_buffers": Case(join={}, forward_sync_buffers=False),
    # In PyTorch a rank without inputs sends, from its second such step on, the parameters that others used earlier.
    # So a parameter that no rank uses any more gets a gradient of zeros. Without momentum this equals no gradient.
    "join_unused": Case(join={}, find_unused_parameters=True, use=varying, momentum=0),
    # PyTorch's static_graph doesn't allow ranks without inputs in the first iteration either.
    "join_static": Case(join={}, static=True, find_unused_parameters=True, use=fixed),
    "join_accumulate": Case(join={}, accumulate=2),
    "join_effective": Case(join={"divide_by_initial_world_size": False}),
    "join_throw": Case(join={"throw_on_early_termination": True}),
}


def draw(seed, sizes, dtype):
    torch.manual_seed(seed)
    return torch.randn(sizes, dtype=torch.float64).to(dtype)


def make_net(rank, dtype):
    net = BranchNet().to(dtype)
    with torch.no_grad():
        for i, parameter in enumerate(net.parameters()):
            parameter.copy_(draw(1000 * (1 + rank) + i, parameter.shape, dtype) * 0.3)
        net.norm.running_mean.fill_(0.01 * rank)
    return net


class Training:
    def __init__(self, case, ddp, rank, dtype):
        self.case, self.ddp, self.rank, self.dtype = case, ddp, rank, dtype
        self.optimizer = torch.optim.SGD(ddp.module.parameters(), lr=0.02, momentum=case.momentum)

    def step(self, number):
        case = self.case
        if number % case.zero_every == 0:
            self.optimizer.zero_grad()
        if case.one_batch:
            x = torch.cat([self.input(number, part) for part in range(case.accumulate)])
            self.loss(x, case.use(number, 0, self.rank)).backward()
        else:
            for part in range(case.accumulate):
                last = part + 1 == case.accumulate
                with contextlib.nullcontext() if last else self.ddp.no_sync():
                    use = case.use(number, part, self.rank)
                    (self.loss(self.input(number, part), use) / case.accumulate).backward()
        self.optimizer.step()

    def input(self, number, part):
        return draw(10000 + 1000 * self.rank + 10 * number + part, (BATCH_SIZE, 8), self.dtype)

    def loss(self, x, use):
        return F.mse_loss(self.ddp(x, use)[0], x.sin().sum(1))


def save(net, path):
    with open(path, "wb") as f:
        gradients = [torch.full_like(p, float("nan")) if p.grad is None else p.grad for p in net.parameters()]
        for tensor in [*net.parameters(), *net.buffers(), *gradients]:
            f.write(tensor.detach().double().contiguous().numpy().tobytes())


def run_case(case, rank, dtype, path, hook=None, ours=None):
    net = make_net(rank, dtype)
    if case.ignored:
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, case.ignored)
    ddp = DistributedDataParallel(net, bucket_cap_mb=25 if hook else 1024 / 2**20, **case.ddp)
    if hook:
        unused, scales = list(case.unused(net, dist.get_world_size())), case.scales(dist.get_world_size())
        twin = TwinHook(hook, net, ours, lambda i: unused[i], lambda i: scales[i])
        ddp.register_comm_hook(None, twin.run)
    training = Training(case, ddp, rank, dtype)
    if case.join is None:
        for step in range(NUM_STEPS):
            training.step(step)
    else:
        try:
            for epoch, counts in enumerate(JOIN_STEPS):
                with ddp.join(**case.join):
                    for step in range(counts[rank]):
                        training.step(50 * epoch + step)
        except RuntimeError as error:
            assert "exhausted" in str(error), error
        training.optimizer.zero_grad()
    save(net, path)


def main(out, *names):
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    store = dist.PrefixStore(f"twin{os.environ['DDPRUN_ROUND']}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    for name in names:
        if "+" in name:
            name, ours = name.split("@")
            case, hook = name.split("+")
            run_case(CASES[case], rank, torch.float32, f"{out}.{name}.float32.{rank}", hook, ours)
            continue
        for dtype in ("float64", "float32"):
            run_case(CASES[name], rank, getattr(torch, dtype), f"{out}.{name}.{dtype}.{rank}")
    dist.barrier()
    os._exit(0)  # a normal exit may abort, because join() dropped collectives when it threw


if __name__ == "__main__":
    main(*sys.argv[1:])
