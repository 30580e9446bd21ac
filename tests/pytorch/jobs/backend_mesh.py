# SPDX-License-Identifier: Apache-2.0
"""Checks a DeviceMesh of two dimensions on the backend "ddprun": its groups, a DTensor, and FSDP2 with replicas."""
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

dist.init_process_group("ddprun")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
rank = dist.get_rank()


def expect(condition, what):
    if not condition:
        sys.exit("rank %d: wrong: %s" % (rank, what))


for name, ranks in (("replica", (rank % 2, rank % 2 + 2)), ("shard", (rank // 2 * 2, rank // 2 * 2 + 1))):
    group = mesh.get_group(name)
    tensor = torch.tensor(1.0 + rank)
    dist.all_reduce(tensor, group=group)
    expect(group._get_backend(torch.device("cpu")).name() == "ddprun" and tensor == 2 + sum(ranks), name)

numbers = torch.arange(24.0).reshape(4, 6)
cut = distribute_tensor(numbers, mesh, [Shard(0), Shard(1)])
expect(cut.to_local().shape == (2, 3) and torch.equal(cut.redistribute(mesh, [Replicate(), Replicate()]).to_local(), numbers), "DTensor")


def trained(wrap):
    """Trains on all ranks' rows, and returns the weights."""
    torch.manual_seed(5)
    model = wrap(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        torch.manual_seed(step)
        rows = torch.randn(4, 8)
        optimizer.zero_grad()
        model(rows if wrap is same else rows[rank:rank + 1]).square().mean().backward()
        optimizer.step()
    return [each if wrap is same else each.full_tensor() for each in map(torch.Tensor.detach, model.parameters())]


def same(model):
    return model


for one, other in zip(trained(lambda model: fully_shard(model, mesh=mesh)), trained(same)):
    expect(torch.allclose(one, other, rtol=1e-5, atol=1e-6), "FSDP2: %s, not %s" % (one, other))
print("mesh of rank", rank, flush=True)
dist.destroy_process_group()
