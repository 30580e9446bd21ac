#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares a training by ddprun's DistributedDataParallel with the same by PyTorch's (gloo). Parameters and buffers
after 20 steps are the same (docs/ddp.md: float64 to 1e-12, float32 to 1e-5 per tensor).
"""
import array
import itertools
import math
import os

import ranks
import netns  # noqa: E402, found by ranks
import runner  # noqa: E402, found by ranks

WORKER = os.path.join(ranks.BIN, "ddp_worker")
DATA = os.path.join(ranks.SOURCE, "data/digits")
TWIN = os.path.join(ranks.HERE, "pytorch_twin.py")
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}


def read_state(path, shapes):
    """Returns the tensors in a file of float64 values, in the order of `shapes`."""
    with open(path, "rb") as f:
        return [array.array("d", f.read(8 * count)) for _, count in shapes]


def distance(p, q=None):
    return math.dist(p, q if q is not None else [0.0] * len(p))


class Equality(ranks.RanksTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.weights = os.path.join(cls.directory, "weights")
        lines = cls.run_pytorch(1, [TWIN, "--make-weights", cls.weights])[0].splitlines()
        cls.shapes = [(name, int(count)) for name, count in map(str.split, lines)]
        cls.initial = read_state(cls.weights, cls.shapes)
        cls.theirs = {}

    def pytorchs(self, world, *job):
        """Returns the path of PyTorch's results of a job. Each job runs once, on this host."""
        key = world, job
        if key not in self.theirs:
            path = os.path.join(self.directory, f"theirs{len(self.theirs)}")
            self.run_pytorch(world, [TWIN, *job, path], timeout=200)
            self.theirs[key] = path
        return self.theirs[key]

    def compare(self, world, accumulate=1, server=None, hosts=(ranks.Local,), dtypes=TOLERANCE):
        """Runs our job on `hosts`, and compares it with PyTorch's."""
        ours = os.path.join(self.scratch(), "ours")
        job = [",".join(dtypes), str(accumulate), self.weights, DATA]
        theirs = self.pytorchs(world, *job)
        self.run_ranks(world, [WORKER, "equality", *job, ours], hosts, server, timeout=200)
        for dtype, rank in itertools.product(dtypes, range(world)):
            p_state = read_state(f"{ours}.{dtype}.{rank}", self.shapes)
            q_state = read_state(f"{theirs}.{dtype}.{rank}", self.shapes)
            self.check(f"{dtype}, rank {rank}", p_state, q_state, TOLERANCE[dtype])

    def check(self, what, p_state, q_state, tolerance):
        for (name, _), first, p, q in zip(self.shapes, self.initial, p_state, q_state):
            error = distance(p, q) / max(distance(q), 1e-300)
            self.assertLessEqual(error, tolerance, f"{what}, {name}")
            self.assertGreater(distance(q, first), 0, f"{name} was trained")

    def test_one_host(self):
        for world in (1, 2, 4):
            with self.subTest(world=world):
                self.compare(world)

    def test_gradient_accumulation_under_no_sync(self):
        self.compare(2, accumulate=3, dtypes=["float64"])

    def test_two_hosts(self):
        try:
            hosts = netns.Hosts(2)
        except netns.Unavailable as reason:
            self.skipTest(str(reason))
        with hosts, ranks.StoreServer(hosts[0]) as server:
            for world in (2, 4):
                with self.subTest(world=world):
                    self.compare(world, server=server, hosts=hosts)


if __name__ == "__main__":
    ranks.skip_without_pytorch()
    runner.main()
