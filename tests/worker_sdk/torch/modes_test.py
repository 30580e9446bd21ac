#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests DistributedDataParallel's modes. The same trainings by our and PyTorch's DDP (gloo) end with the same
parameters, buffers and gradients on each rank (docs/ddp.md: float64 to 1e-12, float32 to 1e-5 per tensor)."""
import array
import itertools
import math
import os

import ranks
import runner  # noqa: E402, found by ranks

WORKER = os.path.join(ranks.BIN, "ddp_modes_worker")
TWIN = os.path.join(ranks.HERE, "modes_twin.py")
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
CASES = ["unused", "unused_keep", "unused_output", "unused_accumulate", "static", "static_accumulate", "checkpointed",
         "ignored", "own_buffers", "accumulate", "big_batch", "join", "join_own_buffers", "join_unused", "join_static", "join_accumulate", "join_effective",
         "join_throw"]
PARAMETERS = [("trunk.weight", 128), ("trunk.bias", 16), ("a.weight", 256), ("a.bias", 16), ("b.weight", 256),
              ("b.bias", 16), ("c.weight", 256), ("c.bias", 16), ("head.weight", 16), ("head.bias", 1)]
BUFFERS = [("norm.running_mean", 16), ("norm.running_var", 16), ("norm.num_batches_tracked", 1)]
TENSORS = [*PARAMETERS, *BUFFERS, *((name + "'s gradient", count) for name, count in PARAMETERS)]


def read(path):
    with open(path, "rb") as f:
        tensors = {name: array.array("d", f.read(8 * count)) for name, count in TENSORS}
        assert f.read() == b""
    return tensors


class Modes(ranks.RanksTest):
    def check(self, what, p, q, tolerance):
        for name, _ in TENSORS:
            none = [math.isnan(value) for value in q[name]]
            self.assertEqual([math.isnan(value) for value in p[name]], none, f"{what}, {name}: which is undefined")
            if not any(none):
                error = math.dist(p[name], q[name]) / max(math.hypot(*q[name]), 1e-300)
                self.assertLessEqual(error, tolerance, f"{what}, {name}")

    def compare(self, world):
        ours, summed, theirs = (os.path.join(self.directory, f"{side}{world}") for side in ("ours", "summed", "theirs"))
        self.run_pytorch(world, [TWIN, theirs, *CASES])
        self.run_ranks(world, [WORKER, ours, *CASES])
        self.run_ranks(world, ["env", "LIKE_NCCL=1", WORKER, summed, *CASES])
        for side, case, dtype, rank in itertools.product((ours, summed), CASES, TOLERANCE, range(world)):
            with self.subTest(side=side, case=case, dtype=dtype, rank=rank):
                p, q = (read(f"{path}.{case}.{dtype}.{rank}") for path in (side, theirs))
                self.check(case, p, q, TOLERANCE[dtype])
        return ours

    def test_two_ranks_equal_pytorch_and_accumulation_equals_the_big_batch(self):
        ours = self.compare(2)
        for dtype, tolerance in TOLERANCE.items():
            p, q = (read(f"{ours}.{case}.{dtype}.0") for case in ("accumulate", "big_batch"))
            for name, _ in PARAMETERS:
                self.assertLessEqual(math.dist(p[name], q[name]) / math.hypot(*q[name]), tolerance, name)

    def test_four_ranks_equal_pytorch(self):
        self.compare(4)

    def test_a_wrong_call_is_refused_by_name(self):
        self.run_ranks(2, [WORKER, "errors"])


if __name__ == "__main__":
    ranks.skip_without_pytorch()
    runner.main()
