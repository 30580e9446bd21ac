#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the rows of docs/benchmarks.md that need a GPU from the results of scripts/gpu_check.sh.

    bench/gpu_rows.py RESULTS     RESULTS: its results.json
"""
import json
import sys

import run
from row import OURS, Goal, Row

TORCH, NCCL, FUSED, LIBTORCH = "PyTorch", "NCCL alone", "PyTorch, fused", "LibTorch"
STEPS = {"step.resnet18_": "ResNet-18, 16 images (ms)", "step.mlp_": "MLP of 25 MiB (ms)",
         "step.gpt2_": "GPT-2 small, 8 × 512 tokens (ms)", "step.two_": "ResNet-18, 2 ranks on one GPU (ms)"}
EAGER = "ddprun, eager"
DATA = {"one.train": "float32 (%)", "one.train_bf16_loader": "bfloat16, 2 loader threads (%)"}
OVER_BUCKETS, WITHOUT_DDP, CLIPPING = "AdamW over DDP's buckets (ms)", "AdamW without DDP (ms)", "clipping (ms)"
CLIPPING_RESNET = "clipping ResNet-18's 62 gradients (ms)"


def figures(results, prefix):
    """Returns the figures of successful steps whose names begin with `prefix`."""
    return [figure for step in results["steps"] if step["name"].startswith(prefix) and step["outcome"] == "ok"
            for figure in step["figures"]]


def collected(*found):
    """Returns (side, metric, value), … in the form of bench/run.py's samples."""
    samples = {}
    for side, metric, value in found:
        samples.setdefault(side, {}).setdefault(metric, []).append(value)
    return samples


def steps(results):
    return collected(*((side, metric, each["step_ms"]) for prefix, metric in STEPS.items()
                       for side, name in ((OURS, "ours"), (TORCH, "torch")) for each in figures(results, prefix + name)))


def optimizers(results):
    found = []
    for each in figures(results, "step.adamw_ours"):
        found += [(OURS, OVER_BUCKETS, each["buckets_ms"]), (OURS, WITHOUT_DDP, each["tensors_ms"]), (OURS, CLIPPING, each["clip_ms"]),
                  (LIBTORCH, OVER_BUCKETS, each["torch_ms"]), (LIBTORCH, WITHOUT_DDP, each["torch_ms"]),
                  (LIBTORCH, CLIPPING, each["torch_clip_ms"]),
                  (OURS, CLIPPING_RESNET, each["resnet18_clip_ms"]), (LIBTORCH, CLIPPING_RESNET, each["torch_resnet18_clip_ms"])]
    for each in figures(results, "step.adamw_torch"):
        found += [(FUSED, OVER_BUCKETS, each["fused_ms"]), (FUSED, WITHOUT_DDP, each["fused_ms"])]
    return collected(*found)


def size_text(num_bytes):
    units = [(20, "MiB"), (10, "KiB"), (0, "B")]
    shift, unit = next(each for each in units if num_bytes >= 1 << each[0])
    return f"{num_bytes >> shift} {unit}"


def all_reduces(results):
    found = []
    for each in figures(results, "host."):
        metric = f"{size_text(each['bytes'])}, {each['op']}, {each['ranks']} rank{'s' if each['ranks'] > 1 else ''} (µs)"
        found += [(side, metric, each[key]) for side, key in ((OURS, "ours_us"), (NCCL, "bare_us"), (TORCH, "torch_us")) if key in each]
    return collected(*found)


def bandwidths(results):
    """Returns the bandwidths of several GPUs. With a single one nothing is sent."""
    found = []
    for each in figures(results, "one.bandwidth"):
        if each["ranks"] > 1:
            metric = f"{size_text(each['bytes'])}, {each['op']}, {each['ranks']} GPUs (µs)"
            found += [(OURS, metric, each["ours_us"]), (NCCL, metric, each["nccl_us"])]
    return collected(*found)


def data_shares(results):
    """Returns the shares in per cent. A run whose step wasn't timed has none."""
    return collected(*((OURS, DATA[step["name"]], round(100 * each["data_share"], 1)) for step in results["steps"]
                       if step["name"] in DATA and step["outcome"] == "ok" for each in step["figures"] if "data_share" in each))


def graphs(results):
    found = []
    for each in figures(results, "one.graph"):
        metric = f"{each['all_reduces']} all-reduces of {size_text(each['bytes'])} (µs)"
        found += [(OURS, metric, each["replayed_us"]), (EAGER, metric, each["eager_us"])]
    return collected(*found)


def rows(results):
    """Returns the rows with their samples."""
    host = all_reduces(results)
    return [
        (Row("gpu-step", "a training step, a rank on each GPU", dict.fromkeys((OURS, TORCH)),
             [Goal(metric, limit, TORCH) for metric, limit in zip(STEPS.values(), (0.75, 0.75, 0.95, 0.97))],
             note="both with DDP on NCCL and SGD with momentum, each step waited for; ResNet-18 "
                  "on 32 × 32 images and the MLP in float32, GPT-2 with bfloat16 by autocast. Two"
                  " ranks on one GPU take turns on it: no measure of the communication"),
         steps(results)),
        (Row("gpu-adamw", "AdamW's step, 10 M float32 parameters in 200 tensors on a GPU", dict.fromkeys((OURS, FUSED, LIBTORCH)),
             [Goal(OVER_BUCKETS, 1.0, FUSED), Goal(WITHOUT_DDP, 1.0, FUSED), Goal(CLIPPING_RESNET, 0.3)],
             note="medians of 30, each waited for; LibTorch's is torch::optim::AdamW and torch::nn::utils::clip_grad_norm_"),
         optimizers(results)),
        (Row("gpu-all-reduce", "what an all-reduce of float32 costs the thread that starts it", dict.fromkeys((OURS, NCCL, TORCH)),
             [Goal("4 KiB, sum, 2 ranks (µs)", 0.4, TORCH), Goal("4 KiB, sum, 2 ranks (µs)", 1.5, NCCL), Goal("4 KiB, sum, 1 rank (µs)", 1.5)],
             note="the time in the call, without the device's; two ranks share a GPU; ours and "
                  "NCCL's in one process"),
         host),
        (Row("gpu-bandwidth", "an all-reduce of float32, a rank on each GPU", dict.fromkeys((OURS, NCCL)), [],
             note="means of 20; NCCL is called as nccl-tests calls it. With n GPUs the bus bandwidth is 2 (n − 1) ÷ n × size ÷ time"),
         bandwidths(results)),
        (Row("gpu-data", "the share of a step of `train` that waits for its data, on GPUs", dict.fromkeys((OURS,)),
             [Goal(metric, 5) for metric in DATA.values()], note="medians of the last epoch's steps on the digits, a rank on each GPU"),
         data_shares(results)),
        (Row("gpu-graph", "all-reduces replayed as one CUDA graph", dict.fromkeys((OURS, EAGER)), [],
             note="means of 50, each waited for; a rank on each GPU"),
         graphs(results)),
    ]


def main(path):
    with open(path, encoding="utf-8") as f:
        results = json.load(f)
    cards, versions = results["cards"], (figures(results, "look.torch") or [{}])[0]
    machine = f"{len(cards)} × {cards[0]}, driver {results['driver']}, {results['cores']} cores"
    if versions:
        machine += f", PyTorch {versions['torch']}, NCCL {versions['nccl']}"
    with open(run.DOCUMENT, encoding="utf-8") as f:
        document = f.read()
    document, mark = run.mark_of(document, machine)
    for row, samples in rows(results):
        if OURS in samples:
            document = run.replace(document, row.name, run.section(row, samples, f"{results['date']}, {mark}"))
    with open(run.DOCUMENT, "w", encoding="utf-8") as f:
        f.write(document)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: bench/gpu_rows.py RESULTS")
    main(sys.argv[1])
