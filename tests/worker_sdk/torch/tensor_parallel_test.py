#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tensor parallelism on 1, 2 and 4 real ranks. tensor_parallel_worker.cc has the checks."""
import os
import re
import time
import unittest

import ranks
import runner  # noqa: E402, found by ranks

WORKER = os.path.join(ranks.BIN, "tensor_parallel_worker")


class TensorParallel(ranks.RanksTest):
    def run_mode(self, mode, world, *arguments):
        return self.run_ranks(world, [WORKER, mode, *arguments])

    def test_column_and_row_layers_equal_plain_ones(self):
        for world in (1, 2, 4):
            with self.subTest(world=world):
                self.run_mode("pairs", world)

    def test_each_function_convolutions_and_what_is_refused(self):
        for world in (2, 4):
            with self.subTest(world=world):
                self.run_mode("functions", world)

    def test_ten_steps_equal_those_of_one_process(self):
        for world, layout in ((1, "tp1"), (2, "tp2"), (4, "tp4"), (4, "tp2xdp2")):
            with self.subTest(layout=layout):
                self.run_mode("training", world, layout)

    def test_a_model_saved_by_one_number_of_ranks_is_loaded_by_another_bit_for_bit(self):
        directory = self.scratch()
        for save, load in ((2, 1), (1, 4), (4, 2)):
            with self.subTest(save=save, load=load):
                path = os.path.join(directory, f"from-{save}")
                self.run_mode("save", save, path)
                self.run_mode("load", load, path)

    def test_the_example_trains(self):
        self.run_mode("example", 4)

    def test_a_rank_that_dies_is_named_by_the_others(self):
        job = self.start_ranks(2, [WORKER, "until_error"])
        for line in job.processes[0].stdout:
            if "running" in line:
                break
        job.processes[1].kill()
        begin = time.monotonic()
        codes, outputs = job.wait()
        self.assertEqual(codes, [1, -9])
        self.assertRegex(outputs[0], "tensor_parallel_worker: .*rank 1")
        self.assertLess(time.monotonic() - begin, 10)


class Example(unittest.TestCase):
    def test_the_pages_example_is_the_one_that_trains(self):
        def read(*path):
            with open(os.path.join(ranks.SOURCE, *path), encoding="utf-8") as f:
                return f.read()

        def without_spaces(text):
            return "".join(text.replace("ddprun::", "").split())

        blocks = re.findall(r"```cpp\n(.*?)```", read("docs", "tensor-parallel.md"), re.DOTALL)
        self.assertTrue(blocks)
        program = without_spaces(read("tests", "worker_sdk", "torch", "tensor_parallel_worker.cc"))
        for block in blocks:
            self.assertTrue(without_spaces(block) in program, f"not in tensor_parallel_worker.cc:\n{block}")


if __name__ == "__main__":
    ranks.skip_without_pytorch()
    runner.main()
