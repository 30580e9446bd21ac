"""Rank 1 sleeps, then computes, while the others wait for it in an all_reduce: hang.py [gloo|nccl]."""
import os
import sys
import time

import torch
import torch.distributed as dist

SECONDS = 7


def compute():
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        pass


backend = sys.argv[1] if len(sys.argv) > 1 else "gloo"
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if backend == "nccl" else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
dist.init_process_group(backend)
# PyTorch 2.4 may hang in destroy_process_group() for ever if one of gloo's threads is a tensor's last owner.
ones = torch.ones(1, device=device)
for pause in (lambda: None, lambda: time.sleep(float(os.environ.get("HANG_SECONDS", SECONDS))), compute):
    if dist.get_rank() == 1:
        pause()
    dist.all_reduce(ones)
    ones.fill_(1).item()  # NCCL's all_reduce returns before it has begun
dist.destroy_process_group()
os._exit(0)  # PyTorch 2.15 aborts an exit in which one of gloo's threads drops a tensor
