#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that programs of frameworks train in warm workers, over a restart, to the same bits as without --preload."""
import importlib.util
import re

import harness


class Frameworks(harness.Job):
    def trained(self, name, *preload):
        """Returns how many workers of each round were warm, and the job's result."""
        with harness.scratch() as folder:
            done = self.run_job("--standalone", "--nproc_per_node=2", "--max-restarts=1", *preload, harness.job("frameworks"), name, folder,
                                timeout=200, LOGLEVEL="INFO")
        self.assertEqual(done.returncode, 0, self.transcript)
        result, = self.lines(done.stdout, "result ")
        return re.findall(r"run; (\d) of 2 began warm", done.stderr), result

    def check(self, name):
        if not importlib.util.find_spec({"trainer": "transformers"}.get(name, name)):
            self.skipTest(f"no {name} here: scripts/setup.sh full")
        _, cold = self.trained(name)
        with harness.scratch() as cache:
            for _ in range(4):  # a job after the first one may add what is imported only beside the others
                were_warm, result = self.trained(name, "--preload=auto", f"--preload-cache={cache}")
                self.assertEqual(result, cold, self.transcript)
                if were_warm == ["2", "2"]:
                    break
        self.assertEqual(were_warm, ["2", "2"], self.transcript)
        _, restarts, *_, right = cold.split()
        self.assertEqual(restarts, "1")
        self.assertGreater(int(right), 240)  # of 297 images

    def test_accelerate_trains_to_the_same_bits(self):
        self.check("accelerate")

    def test_lightning_trains_to_the_same_bits(self):
        self.check("lightning")

    def test_the_trainer_trains_to_the_same_bits(self):
        self.check("trainer")


if __name__ == "__main__":
    harness.main()
