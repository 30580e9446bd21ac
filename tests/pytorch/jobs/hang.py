"""Rank 1 sleeps, then computes, while the others wait for it in an all_reduce."""
import os
import time

import torch
import torch.distributed as dist

SECONDS = 7


def compute():
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        pass


dist.init_process_group("gloo")
# PyTorch 2.4 may hang in destroy_process_group() for ever if one of gloo's threads is a tensor's last owner.
ones = torch.ones(1)
for pause in (lambda: None, lambda: time.sleep(float(os.environ.get("HANG_SECONDS", SECONDS))), compute):
    if dist.get_rank() == 1:
        pause()
    dist.all_reduce(ones)
dist.destroy_process_group()
