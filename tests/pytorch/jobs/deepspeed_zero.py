# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's ZeRO-1 over gloo, on CPUs. The ranks have different batches, and print what they trained to."""
import os

import deepspeed
import torch

deepspeed.init_distributed("gloo")
rank, world_size = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
torch.manual_seed(0)
net = torch.nn.Linear(8, 4)
config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1},
          "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}}}
engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
begin = net.weight.detach().clone()
torch.manual_seed(rank)
for _ in range(5):
    engine.backward(engine(torch.randn(4, 8)).square().mean())
    engine.step()
assert not torch.equal(net.weight, begin)
print(f"trained to {net.weight.sum().item()!r} of {world_size} ranks, under ddprun: {'DDPRUN_ROUND' in os.environ}", flush=True)
deepspeed.comm.barrier()
deepspeed.comm.destroy_process_group()
