#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests Pipeline on 1 to 4 real ranks. pipeline_worker.cc has the checks."""
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import ranks  # noqa: E402
import runner  # noqa: E402, found by ranks

WORKER = os.path.join(ranks.BIN, "pipeline_worker")


class Pipeline(ranks.RanksTest):
    # LibTorch takes a second to load, so there is one job for each number of stages.
    def check(self, world, *modes):
        outputs = self.run_ranks(world, [WORKER, *modes])
        for output in outputs:
            self.assertEqual([line for line in output.splitlines() if line.startswith("mode ")],
                             [f"mode {mode}" for mode in modes])

    def test_one_stage_is_one_process(self):
        self.check(1, "equality", "live")

    def test_two_stages_equal_one_process_keep_what_the_schedule_says_and_name_what_cannot_be(self):
        self.check(2, "equality", "live", "options", "calls", "throws", "refused", "late")

    def test_three_stages_equal_one_process_and_name_who_differs_or_throws(self):
        self.check(3, "equality", "options", "calls", "throws")

    def test_four_stages_equal_one_process_and_so_do_two_of_two_beside_each_other(self):
        self.check(4, "equality", "live", "mesh", "throws")

    def test_a_stage_that_is_killed_is_named_by_the_others(self):
        job = self.start_ranks(3, [WORKER, "endless"])
        for process in job.processes:
            lines = iter(process.stdout.readline, "")
            self.assertIn("trains\n", lines)
        job.processes[1].kill()
        begin = time.monotonic()
        codes, outputs = job.wait()
        self.assertEqual(codes, [1, -9, 1])
        self.assertLess(time.monotonic() - begin, 20)
        for rank in (0, 2):
            self.assertIn("rank 1 was lost", outputs[rank])


if __name__ == "__main__":
    ranks.skip_without_pytorch()
    runner.main()
