# SPDX-License-Identifier: Apache-2.0
"""Rows that need a GPU: a rank on each that the machine has. Elsewhere they are skipped."""
import os
import shutil
import subprocess

import measure
from row import OURS, Goal, Row

TORCH, NCCL = "Python DDP, NCCL", "NCCL alone"
STEP, LARGEST = "median step (ms)", "256 MiB (ms)"


def num_gpus():
    """Throws Skipped where there is none."""
    if not shutil.which("nvidia-smi"):
        raise measure.Skipped("no GPU")
    done = subprocess.run(["nvidia-smi", "-L"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    gpus = [line for line in done.stdout.splitlines() if line.startswith("GPU ")]
    if done.returncode != 0 or not gpus:
        raise measure.Skipped("no GPU: " + (done.stdout + done.stderr).strip().split("\n")[0])
    return len(gpus)


def _ours(name, *arguments):
    ranks = num_gpus()
    return measure.json_of([measure.program("ddprun"), "--standalone", f"--nproc_per_node={ranks}", "--log-line-prefix-template=",
                            measure.program(name), *arguments])


def _step():
    return {STEP: _ours("step_bench", "resnet18", "50", "none", "cuda")["step_ms"]}


def _step_of_torch():
    ranks = num_gpus()
    script = os.path.join(measure.HERE, "sdk/step_ddp.py")
    found = measure.json_of(measure.torchrun() + ["--standalone", f"--nproc_per_node={ranks}", script, "resnet18", "50",
                                                  "none", "cuda"])
    return {STEP: found["step_ms"]}


def _all_reduce_sides():
    """The program runs both in turn; each repetition starts it once."""
    runs = []

    def ours():
        runs.append(_ours("nccl_bandwidth"))
        metrics = {LARGEST: runs[-1]["ours_us"] / 1000}
        if runs[-1]["ranks"] > 1:
            metrics["bus (GB/s)"] = runs[-1]["bus_gb_per_s"]
        return metrics

    def alone():
        num_gpus()
        if not runs:
            raise measure.Missing("nccl_bandwidth has not run")
        return {LARGEST: runs[-1]["nccl_us"] / 1000}

    return {OURS: ours, NCCL: alone}


def rows():
    return [
        Row("gpu-step", "a step of ResNet-18 on 32 × 32 images, 16 per rank, a rank on each GPU", {OURS: _step, TORCH: _step_of_torch},
            [Goal(STEP, 1.0, TORCH)], note="SGD with momentum, float32; medians of 50 steps after 5, each waited for"),
        Row("gpu-all-reduce", "all-reduce of float32 over NCCL, a rank on each GPU", _all_reduce_sides(),
            [Goal(LARGEST, round(1 / 0.98, 2), NCCL)],
            note="both in one process, in turn; the mean of 20 after 5, as nccl-tests has it; 1.02 × the time is 0.98 × the bandwidth. "
                 "With one rank there is no bus"),
    ]
