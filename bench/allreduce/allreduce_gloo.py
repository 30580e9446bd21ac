#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The peer of allreduce_bench: PyTorch's gloo, two local processes, the same sizes and loop.

    allreduce_gloo.py [SIZE_BYTES…]      one JSON line: medians of rank 0 in microseconds, by size
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time


def rank_main(rank, path, sizes):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    medians = {}
    for size in sizes:
        tensor = torch.zeros(size // 4)
        times = []
        for i in range(-5, 500 if size <= 65536 else 30):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(tensor)
            if i >= 0:
                times.append((time.perf_counter() - start) * 1e6)
        medians[str(size)] = statistics.median(times)
    if rank == 0:
        print(json.dumps({"gloo_us": medians}), flush=True)
    dist.destroy_process_group()


def main():
    if sys.argv[1:2] == ["--rank"]:
        return rank_main(int(sys.argv[2]), sys.argv[3], [int(word) for word in sys.argv[4:]])
    sizes = sys.argv[1:] or ["4096", str(25 << 20)]
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen([sys.executable, __file__, "--rank", str(rank), folder + "/store", *sizes])
                 for rank in range(2)]
        return max(rank.wait(timeout=300) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
