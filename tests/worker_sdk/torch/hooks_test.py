#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests communication hooks on 2 and 4 real ranks, against PyTorch's own (fp16, bf16, PowerSGD) and against references
from the definitions (int8, top-k): hooks_twin.py. The number of bytes sent is exactly that of
docs/internals/compression.md. The parts that aren't sent are kept.
"""
import array
import itertools
import math
import os
import tempfile
import unittest

import ranks
import runner  # noqa: E402, found by ranks

WORKER = os.path.join(ranks.BIN, "hook_worker")
TWIN = os.path.join(ranks.HERE, "hooks_twin.py")
RATIO, START = 0.01, 2
TOP_K = f"topk:{RATIO}:0"
POWER_SGD = {f"powersgd:{rank}:{START}": rank for rank in (2, 4)}
HOOKS = ["fp16", "bf16", "int8", TOP_K, *POWER_SGD]
NUM_ITERATIONS = 5
EPSILON = {"fp16": 2**-11, "bf16": 2**-8}  # the relative error of rounding
TINY = {"fp16": 2**-24, "bf16": 0}  # the absolute error of rounding subnormals


def read_floats(path):
    values = array.array("f")
    with open(path, "rb") as f:
        values.frombytes(f.read())
    return values


class World:
    """The results of `world` ranks for the same gradients, and the expected ones."""

    def __init__(self, server, world, round_number):
        with tempfile.TemporaryDirectory(prefix="ddprun-hooks-") as directory:
            ranks.PyTorch.get().run([TWIN, directory, str(world), *HOOKS], [dict(os.environ)], timeout=100)
            output = ranks.run(server, world, [WORKER, directory, *HOOKS], round_number=round_number)[0]
            self.lines = [line.split() for line in output.splitlines()]
            with open(os.path.join(directory, "shapes")) as f:
                self.shapes = [tuple(map(int, line.split())) for line in f]
            with open(os.path.join(directory, "layout")) as f:
                self.layout = [line.split() for line in f]
            all_ranks = range(world)
            self.gradients = [read_floats(f"{directory}/gradients.{r}") for r in all_ranks]
            self.ours = {h: [read_floats(f"{directory}/{h}.{r}") for r in all_ranks] for h in HOOKS}
            self.expected = {h: read_floats(f"{directory}/{h}.expected") for h in HOOKS}
            self.errors = {h: [self.read_errors(directory, h, r) for r in all_ranks] for h in HOOKS}
            self.expected_errors = {h: [read_floats(f"{directory}/{h}.errors.{r}") for r in all_ranks]
                                    for h in POWER_SGD}
        self.counts = [math.prod(shape) for shape in self.shapes]

    def read_errors(self, directory, hook, rank):
        """Returns {parameter: values} from the end of the hook's state. The state begins with 8 bytes of iterations."""
        state = read_floats(f"{directory}/{hook}.state.{rank}")
        named = [(line[2], int(line[3])) for line in self.lines if line[:2] == ["state", hook]]
        errors, end = {}, len(state)
        for name, count in reversed(named):
            if name.startswith("error.p"):
                errors[int(name[len("error.p"):])] = state[end - count:end]
                end -= count
        return dict(sorted(errors.items()))

    def traffic(self, hook):
        return next(tuple(map(int, line[2:])) for line in self.lines if line[:2] == ["traffic", hook])

    def parameters(self, values):
        """Yields (iteration, parameter, its part of `values`)."""
        end = 0
        for iteration, i in itertools.product(range(NUM_ITERATIONS), range(len(self.counts))):
            yield iteration, i, values[end:end + self.counts[i]]
            end += self.counts[i]

    def compressed_rank(self, parameter, rank):
        """Returns PowerSGD's rank for a parameter; 0: the parameter is not compressed."""
        n, m = self.shapes[parameter][0], self.counts[parameter] // self.shapes[parameter][0]
        r = min(n, m, rank)
        return r if (n + m) * r * 2 < n * m else 0


def distance(p, q):
    return math.dist(p, q) / math.hypot(*q)


class Hooks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        rounds = itertools.count(1)
        with ranks.StoreServer() as server:
            cls.worlds = {world: World(server, world, next(rounds)) for world in (2, 4)}

    def test_every_rank_has_the_same_averages(self):
        for (size, world), hook in itertools.product(self.worlds.items(), HOOKS):
            with self.subTest(world=size, hook=hook):
                self.assertEqual(len(world.ours[hook][0]), NUM_ITERATIONS * sum(world.counts))
                for rank in range(1, size):
                    self.assertEqual(world.ours[hook][rank], world.ours[hook][0])

    def test_the_buckets_are_as_defined(self):
        for (size, world), hook in itertools.product(self.worlds.items(), HOOKS):
            with self.subTest(world=size, hook=hook):
                self.assertGreater(len(world.layout), 3)
                self.assertEqual([line[2:] for line in world.lines if line[:2] == ["buckets", hook]], world.layout)

    def test_fp16_and_bf16_equal_pytorchs_within_their_rounding(self):
        for (size, world), hook in itertools.product(self.worlds.items(), EPSILON):
            with self.subTest(world=size, hook=hook):
                epsilon, tiny = EPSILON[hook], TINY[hook]
                num_rounded = 0
                for ours, theirs, *all_ranks in zip(world.ours[hook][0], world.expected[hook], *world.gradients):
                    mean, magnitude = sum(all_ranks) / size, sum(map(abs, all_ranks)) / size
                    # Our hook rounds each cast and the average once; sums are float32.
                    self.assertLessEqual(abs(ours - mean), 2.01 * epsilon * magnitude + 2 * tiny)
                    # PyTorch's hook rounds each division and each addition, too.
                    self.assertLessEqual(abs(ours - theirs), (size + 4) * (epsilon * magnitude + tiny))
                    num_rounded += abs(ours - mean) > 1e-6 * magnitude
                self.assertGreater(num_rounded, len(world.gradients[0]) / 2, "it is compressed")

    def test_int8_and_top_k_equal_their_definitions(self):
        for (size, world), hook in itertools.product(self.worlds.items(), ("int8", TOP_K)):
            with self.subTest(world=size, hook=hook):
                both = zip(world.parameters(world.ours[hook][0]), world.parameters(world.expected[hook]))
                for (iteration, i, p), (_, _, q) in both:
                    self.assertLessEqual(max(abs(a - b) for a, b in zip(p, q)), 1e-6 * max(map(abs, q)),
                                         f"iteration {iteration}, parameter {i}")

    def test_power_sgd_equals_pytorchs_from_the_same_q(self):
        for (size, world), hook in itertools.product(self.worlds.items(), POWER_SGD):
            with self.subTest(world=size, hook=hook):
                both = zip(world.parameters(world.ours[hook][0]), world.parameters(world.expected[hook]))
                for (iteration, i, p), (_, _, q) in both:
                    self.assertLessEqual(distance(p, q), 2e-6 if iteration < START else 1e-5,
                                         f"iteration {iteration}, parameter {i}")
                for ours, theirs in zip(world.errors[hook], world.expected_errors[hook]):
                    self.assertLessEqual(distance([x for e in ours.values() for x in e], theirs), 1e-5)

    def test_a_part_that_is_not_sent_is_kept(self):
        for (size, world), hook in itertools.product(self.worlds.items(), (TOP_K, *POWER_SGD)):
            with self.subTest(world=size, hook=hook):
                self.assertGreater(len(world.errors[hook][0]), 2)
                rest = {i: [sum(each) / size for each in zip(*[e[i] for e in world.errors[hook]])]
                        for i in world.errors[hook][0]}
                for i, error in rest.items():
                    total = [[0.0] * world.counts[i] for _ in range(2)]
                    averages = world.parameters(world.ours[hook][0])
                    for parts in zip(averages, *map(world.parameters, world.gradients)):
                        if parts[0][1] != i:
                            continue
                        total[0] = [a + b for a, b in zip(total[0], parts[0][2])]
                        total[1] = [a + sum(b) / size for a, b in zip(total[1], zip(*[p[2] for p in parts[1:]]))]
                    self.assertGreater(math.hypot(*error), 0.01 * math.hypot(*total[1]))
                    self.assertLessEqual(distance([a + b for a, b in zip(total[0], error)], total[1]), 1e-6)

    def test_bytes_sent_are_exact(self):
        for (size, world), hook in itertools.product(self.worlds.items(), HOOKS):
            with self.subTest(world=size, hook=hook):
                buckets = [(int(line[0]), [int(part.split(":")[0]) for part in line[1:]]) for line in world.layout]
                steps = [buckets[:1]] + [buckets[1:]] * (NUM_ITERATIONS - 1)
                whole = sum(4 * count for step in steps for count, _ in step)
                sent = sum(self.sent_bytes(world, hook, iteration, *bucket)
                           for iteration, step in enumerate(steps) for bucket in step)
                self.assertEqual(world.traffic(hook), (whole, sent))

    def sent_bytes(self, world, hook, iteration, count, parameters):
        if hook in EPSILON:
            return 2 * count
        if hook == "int8":
            return count + 4 * math.ceil(count / 256)
        if hook == TOP_K:
            return 8 * max(1, math.floor(RATIO * sum(world.counts[i] for i in parameters) + 0.5))
        if iteration < START:
            return 4 * count
        sent = 0
        for i in parameters:
            rank = world.compressed_rank(i, POWER_SGD[hook])
            n, m = world.shapes[i][0], world.counts[i] // world.shapes[i][0]
            sent += rank * (n + m) if rank else world.counts[i]
        return 4 * sent


if __name__ == "__main__":
    ranks.skip_without_pytorch()
    runner.main()
