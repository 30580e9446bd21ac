# SPDX-License-Identifier: Apache-2.0
"""Checks that DDP, FSDP2 and others train to the same weights on the backend "ddprun" as on gloo."""
import sys
import tempfile
import os

import torch
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("ddprun")
rank, size = dist.get_rank(), dist.get_world_size()
gloo = dist.new_group(backend="gloo")


def model():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def train(wrapped, optimizer, same_data=False):
    for step in range(3):
        torch.manual_seed(10 * step + (0 if same_data else rank))
        optimizer.zero_grad()
        wrapped(torch.randn(6, 8)).square().mean().backward()
        optimizer.step()


def sgd(wrapped):
    return torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def weights(wrapped):
    return [whole(parameter.detach()).clone() for parameter in wrapped.parameters()]


def ddp(group):
    wrapped = DistributedDataParallel(model(), process_group=group)
    train(wrapped, sgd(wrapped))
    return weights(wrapped)


def ddp_with_unused_and_sparse(group):
    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(6)
            self.table = torch.nn.EmbeddingBag(20, 8, sparse=True)
            self.unused = torch.nn.Linear(2, 2)
            self.head = model()

        def forward(self, _):
            return self.head(self.table(torch.randint(0, 20, (6, 2))))
    wrapped = DistributedDataParallel(Both(), process_group=group, find_unused_parameters=True)
    train(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.1))
    return weights(wrapped)


def fsdp(group):
    wrapped = fully_shard(model(), mesh=DeviceMesh.from_group(group, "cpu"))
    train(wrapped, sgd(wrapped))
    return weights(wrapped)


def tensor_parallel(group):
    mesh = DeviceMesh.from_group(group, "cpu")
    wrapped = parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    train(wrapped, sgd(wrapped), same_data=True)
    tensor = distribute_tensor(torch.arange(24.0).reshape(size * 2, -1), mesh, [Shard(0)])
    moved = tensor.redistribute(mesh, [Shard(1)]).redistribute(mesh, [Replicate()])
    return [*weights(wrapped), moved.to_local()]


def zero(group):
    plain = DistributedDataParallel(model(), process_group=group)
    optimizer = ZeroRedundancyOptimizer(plain.parameters(), torch.optim.Adam, process_group=group, lr=0.01)
    train(plain, optimizer)
    return weights(plain)


def pipeline(group):
    part = [model()[:2], model()[2:]][rank]
    schedule = Schedule1F1B(PipelineStage(part, rank, size, torch.device("cpu"), group=group), n_microbatches=4,
                            loss_fn=torch.nn.functional.mse_loss)
    torch.manual_seed(7)
    rows, wanted = torch.randn(8, 8), torch.randn(8, 4)
    if rank == 0:
        schedule.step(rows)
    else:
        schedule.step(target=wanted)
    return [parameter.grad for parameter in part.parameters()]


def distributed_checkpoint(group):
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, 0, group=group)
    wrapped = fully_shard(model(), mesh=DeviceMesh.from_group(group, "cpu"))
    checkpoint.save({"model": wrapped.state_dict()}, checkpoint_id=folder[0], process_group=group)
    before = weights(wrapped)
    with torch.no_grad():
        for parameter in wrapped.parameters():
            parameter.zero_()
    state = {"model": wrapped.state_dict()}
    checkpoint.load(state, checkpoint_id=folder[0], process_group=group)
    after = weights(wrapped)
    if not all(torch.equal(one, other) for one, other in zip(before, after)):
        sys.exit("rank %d: the checkpoint has other weights" % rank)
    return after


for call in (ddp, ddp_with_unused_and_sparse, fsdp, tensor_parallel, zero, pipeline, distributed_checkpoint):
    ours, theirs = call(dist.group.WORLD), call(gloo)
    for one, other in zip(ours, theirs):
        if not torch.allclose(one, other, rtol=1e-5, atol=1e-6):
            sys.exit("rank %d: %s: %s, not %s" % (rank, call.__name__, one.reshape(-1)[:5], other.reshape(-1)[:5]))
    if rank == 0:
        print("equal:", call.__name__, flush=True)
dist.destroy_process_group()
