# SPDX-License-Identifier: Apache-2.0
"""The row about training: `train` under ddprun and the same net in Python DDP under torchrun."""
import json
import os
import tempfile

import measure
from row import OURS, Goal, Row

PEER = "Python DDP, torchrun"


def _train(argv, median_step_ms):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "summary.json")
        wall = measure.wall_seconds(argv + ["--json", path])
        with open(path) as f:
            summary = json.load(f)
    return {"wall s": wall, "median step ms": median_step_ms(summary),
            "test accuracy": summary["test_accuracy"]}


def _ours():
    measure.program("train", "configure with LibTorch: scripts/setup.sh minimal")
    return _train([measure.program("ddprun"), "--standalone", "--nproc_per_node=2", "train"],
                  lambda summary: summary["steps"]["step"]["median"] * 1e3)


def _theirs():
    script = os.path.join(measure.HERE, "train_ddp.py")
    return _train(measure.torchrun() + ["--standalone", "--nproc_per_node=2", script],
                  lambda summary: summary["median_step_ms"])


def rows():
    return [Row("train", "`train` on the digits, 5 epochs, 2 ranks",
                {OURS: _ours, PEER: _theirs},
                [Goal("wall s", 0.7, PEER), Goal("median step ms", 0.9, PEER)], repeats=3,
                note="The same net, optimiser, batch and data. Wall time is the whole command's")]
