#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests examples/mnist on the shipped digits: it learns them, goes on from its checkpoints, and stops on request."""
import os
import re
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../launcher"))
import harness  # noqa: E402

DIGITS = os.path.join(harness.SOURCE, "data/digits")
RETRYABLE = 75


class Mnist(harness.Case):
    def job(self, directory, num_epochs):
        return self.start("--standalone", "--nproc_per_node=2", os.path.join(harness.BIN, "mnist"), DIGITS, directory,
                          str(num_epochs))

    def test_the_same_command_goes_on_and_it_has_learnt_the_digits(self):
        directory = self.scratch()
        first = self.finish(self.job(directory, 3), code=0)
        self.assertNotIn("goes on", first.stdout)
        second = self.finish(self.job(directory, 4), code=0)
        self.assertIn("goes on after step 72\n", second.stdout)
        accuracy, = re.findall(r"epoch \d: .* accuracy (\S+)", second.stdout)
        self.assertGreater(float(accuracy), 0.9, second.text)

    def test_a_job_that_loses_its_node_leaves_with_75_and_a_checkpoint_of_its_last_step(self):
        directory = self.scratch()
        running = self.job(directory, 1000)
        for line in running.stdout:
            if "epoch 1: " in line:
                break
        running.send_signal(signal.SIGUSR1)
        done = self.finish(running, code=RETRYABLE)
        step = re.search(r"left after step (\d+)", done.stdout).group(1)
        self.assertIn(f"step-{int(step):012}.safetensors", os.listdir(directory))


if __name__ == "__main__":
    harness.main()
