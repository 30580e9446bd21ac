#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that a gloo job survives every restart. Its rank 1 dies in each round. Every round's ranks must meet anew,
without keys of the round before. A DDP job with checkpoints ends with the loss of an undisturbed one.
Usage: restarts_test.py [NUM_RESTARTS], 2 by default."""
import sys

import harness

num_restarts = 2


class Restarts(harness.Job):
    def test_every_restart_works(self):
        n = num_restarts
        done = self.run_job("--standalone", "--nproc_per_node=2", f"--max-restarts={n}", "--max-restart-delay=0",
                            harness.job("restart"), str(n), timeout=60 + 20 * n)
        self.assertEqual(done.returncode, 0, self.transcript)
        expected = sorted(f"attempt {r}: rank {k} works" for r in range(n + 1) for k in range(2))
        self.assertEqual(self.lines(done.stdout, "attempt "), expected, self.transcript)
        print(f"{n} restarts, every one worked")

    def test_a_rank_that_ends_in_the_middle_costs_no_step_of_the_training(self):
        with harness.scratch() as directory:
            done = self.run_job("--standalone", "--nproc_per_node=2", "--max-restarts=1", "--max-restart-delay=0",
                                harness.job("come_back"), directory)
        self.assertEqual(done.returncode, 0, self.transcript)
        said = self.lines(done.stdout, " came back at step ")
        self.assertEqual(len(said), 2, self.transcript)
        self.assertEqual(len(set(said)), 1, self.transcript)
        # Rank 0 may be stopped before its last checkpoint is complete.
        self.assertIn(said[0], (" came back at step 5", " came back at step 6"), self.transcript)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        num_restarts = int(sys.argv.pop(1))
    harness.main()
