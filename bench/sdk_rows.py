# SPDX-License-Identifier: Apache-2.0
"""Rows about the worker SDK: what it costs a training beside its communication."""
import json
import os
import subprocess
import tempfile

import measure
from row import OURS, Goal, Row

SYNCHRONOUS = "synchronous save"
STALL = "training thread stalls (ms)"


def _checkpoint(mode):
    def side():
        with tempfile.TemporaryDirectory(dir=os.path.dirname(measure.BIN)) as directory:
            argv = [measure.program("checkpoint_bench", "configure with LibTorch: scripts/setup.sh minimal"), mode, directory]
            done = subprocess.run(argv, env=measure.environment(), stdin=subprocess.DEVNULL, text=True,
                                  capture_output=True, timeout=300)
        measure.check(argv, done.returncode, done.stderr)
        found = json.loads(done.stdout)
        return {STALL: found["stall_ms"], "until it is on disk (ms)": found["write_ms"]}
    return side


def _checkpoint_row():
    return Row("checkpoint", "a checkpoint of 100 MB in 50 tensors: what `save()` costs the training thread",
               {OURS: _checkpoint("async"), SYNCHRONOUS: _checkpoint("sync")}, [Goal(STALL, 0.1, SYNCHRONOUS)], repeats=5,
               note="`CheckpointOptions::async` on and off, median of 7 saves after the first; the thread that writes takes "
                    "some of one core meanwhile, which isn't counted")


TORCH = "torch::optim::AdamW"
STEP = "step, over DDP's buckets (ms)"
ALONE = "step, without DDP (ms)"


def _adamw_sides():
    """The program runs both in turn, step by step; each repetition starts it once."""
    runs = []

    def ours():
        program = measure.program("optimizer_bench", "configure with LibTorch: scripts/setup.sh minimal")
        runs.append(measure.json_of([program], OMP_NUM_THREADS="1"))
        return {STEP: runs[-1]["buckets_ms"], ALONE: runs[-1]["tensors_ms"]}

    def peer():
        if not runs:
            raise measure.Missing("optimizer_bench has not run")
        return {STEP: runs[-1]["torch_ms"], ALONE: runs[-1]["torch_ms"]}

    return {OURS: ours, TORCH: peer}


def _adamw_row():
    return Row("adamw", "AdamW's step, 10 M float32 parameters in 200 tensors, one thread", _adamw_sides(),
               [Goal(STEP, 0.4, TORCH)], note="both in one process, in turn, step by step; medians of 30 steps")


def rows():
    return [_checkpoint_row(), _adamw_row()]
