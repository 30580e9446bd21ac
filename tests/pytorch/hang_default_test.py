#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests a plain PyTorch job that hangs, without any flag: ddprun names the rank within a minute, and kills none."""
import re

import harness


class HangByDefault(harness.Job):
    def test_the_rank_that_hangs_is_told_within_a_minute_and_goes_on(self):
        done = self.run_job("--standalone", "--nproc_per_node=2", harness.job("hang"), HANG_SECONDS="63")
        self.assertEqual(done.returncode, 0, self.transcript)
        told = re.search(r"hang: rank 1 \(node 0, .*\) in clock_nanosleep\(\) for ([\d.]+) s; others: rank 0 in c10d::", done.stderr)
        self.assertTrue(told, self.transcript)
        self.assertLessEqual(float(told[1]), 60, self.transcript)


if __name__ == "__main__":
    harness.main()
