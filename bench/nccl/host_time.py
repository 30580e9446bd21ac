#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`nccl_host host` in PyTorch: measures the cost of an all-reduce for the thread that starts it.

    torchrun … bench/nccl/host_time.py BYTESxCOUNT,… [average]
"""
import json
import os
import sys
import time

import torch
import torch.distributed as dist

BATCH = 8  # after so many calls the device catches up, so that no full queue is measured


def measure(num_bytes, count, op):
    values = torch.zeros(num_bytes // 4, device="cuda")
    each, whole = [], 0.0
    for i in range(-BATCH, count, BATCH):
        dist.barrier(device_ids=[torch.cuda.current_device()])
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(BATCH):
            start = time.perf_counter()
            dist.all_reduce(values, op, async_op=True).wait()
            if i >= 0:
                each.append(1e6 * (time.perf_counter() - start))
        torch.cuda.synchronize()
        if i >= 0:
            whole += 1e6 * (time.perf_counter() - begin)
    each.sort()
    return {"torch_us": each[len(each) // 2], "torch_p90_us": each[len(each) * 9 // 10], "torch_whole_us": whole / len(each)}


def main(sizes, name="sum"):
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    for size in sizes.split(","):
        num_bytes, count = map(int, size.split("x"))
        found = measure(num_bytes, count, dist.ReduceOp.AVG if name == "average" else dist.ReduceOp.SUM)
        if dist.get_rank() == 0:
            print(json.dumps({"op": name, "bytes": num_bytes, "ranks": dist.get_world_size(),
                              **{key: round(value, 2) for key, value in found.items()}}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
