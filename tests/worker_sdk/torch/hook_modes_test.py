#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests communication hooks with DistributedDataParallel's modes (find_unused_parameters, static_graph, accumulation,
join). The same trainings by our and PyTorch's DDP end with the same parameters, buffers and gradients on each rank.
PyTorch's DDP uses its own hook if it has one, else the definition in docs/internals/compression.md."""
import itertools
import math
import os

import ranks
import runner  # noqa: E402, found by ranks

from modes_test import TENSORS, TWIN, WORKER, read

TOP_K, POWER_SGD = "topk:0.1:0", "powersgd:1:2"
# Tolerances per tensor. int8: if the last bit of a gradient differs, its code may differ by 1/127 of a block's largest
# value. PowerSGD: if two singular values are close, a last bit rotates the vectors. PyTorch's fp16 and bf16 hooks
# divide before they round, and round each sum.
TOLERANCE = {"fp16": 1e-5, "bf16": 1e-4, "int8": 1e-4, TOP_K: 1e-5, POWER_SGD: 1e-2,
             "fp16_pytorch": 1e-2, "bf16_pytorch": 5e-2}
MODES = ["unused_keep", "unused_accumulate", "static", "accumulate", "join", "join_unused",
         "join_static", "join_effective"]
ON_TWO_RANKS = ["unused", "static_accumulate", "join_accumulate"]
ON_FOUR_RANKS = ["unused_accumulate", "static", "join_unused"]


def our_name(hook):
    return hook.removesuffix("_pytorch")


class HookModes(ranks.RanksTest):
    def compare(self, world, modes, hooks):
        cases = list(itertools.product(modes, hooks))
        ours, theirs = (os.path.join(self.directory, f"{side}{world}") for side in ("ours", "theirs"))
        names = dict.fromkeys(f"{mode}+{our_name(hook)}" for mode, hook in cases)
        self.run_ranks(world, [WORKER, ours, *names])
        self.run_pytorch(world, [TWIN, theirs,
                                 *(f"{mode}+{hook}@{ours}.{mode}+{our_name(hook)}" for mode, hook in cases)])
        for (mode, hook), rank in itertools.product(cases, range(world)):
            with self.subTest(world=world, mode=mode, hook=hook, rank=rank):
                p = read(f"{ours}.{mode}+{our_name(hook)}.float32.{rank}")
                q = read(f"{theirs}.{mode}+{hook}.float32.{rank}")
                for name, _ in TENSORS:
                    none = [math.isnan(value) for value in q[name]]
                    self.assertEqual([math.isnan(value) for value in p[name]], none, f"{name}: which is undefined")
                    if not any(none):
                        error = math.dist(p[name], q[name]) / max(math.hypot(*q[name]), 1e-300)
                        self.assertLessEqual(error, TOLERANCE[hook], name)

    def test_two_ranks(self):
        self.compare(2, MODES + ON_TWO_RANKS, TOLERANCE)

    def test_four_ranks(self):
        self.compare(4, ON_FOUR_RANKS, [hook for hook in TOLERANCE if not hook.endswith("_pytorch")])


if __name__ == "__main__":
    ranks.skip_without_pytorch()
    runner.main()
