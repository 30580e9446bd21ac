#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""optimizer_bench.cc in PyTorch on a GPU: AdamW's step over 10 M float32 parameters in 200 tensors, each
way that PyTorch has. Prints the medians of 30 steps as one JSON line."""
import json
import statistics
import time

import torch


def median_ms(**how):
    parameters = [torch.randn(250, 200, device="cuda", requires_grad=True) for _ in range(200)]
    for each in parameters:
        each.grad = torch.randn_like(each)
    optimizer, times = torch.optim.AdamW(parameters, **how), []
    for step in range(-3, 30):  # three to warm up
        torch.cuda.synchronize()
        begin = time.perf_counter()
        optimizer.step()
        torch.cuda.synchronize()
        if step >= 0:
            times.append(1e3 * (time.perf_counter() - begin))
    return round(statistics.median(times), 4)


if __name__ == "__main__":
    print(json.dumps({"fused_ms": median_ms(fused=True), "foreach_ms": median_ms(foreach=True)}))
