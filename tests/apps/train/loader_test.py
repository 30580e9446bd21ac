#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests train with loader threads: the training stays the same, and a slow loader is reported."""
import os
import re
import signal
import subprocess

import checkpoints
import harness
from checkpoint_test import progress_page_word, workers_of
from checkpoints import FEW, LONGER_STEPS, SHORT_RUN, TRAIN, steps_in

LOADING = 120  # offset in the progress page: docs/internals/agent-socket.md
NUM_STEPS, DELAY_MS = 24, 150  # steps of one epoch


class LoaderTest(harness.Case):
    def job(self, directory, summary, *args, flags=()):
        return self.start("--standalone", "--nproc_per_node=2", *flags, TRAIN, *SHORT_RUN, "--checkpoint-dir", directory,
                          "--json", summary, *args)

    def test_a_job_with_loader_threads_ends_bit_for_bit_as_without_them_also_after_a_kill(self):
        directory, summary = self.scratch(), os.path.join(self.scratch(), "summary.json")
        self.finish(self.job(directory, summary), timeout=120, code=0)
        reference = checkpoints.Undisturbed(checkpoints.load_json(summary), directory)

        directory = self.scratch()
        running = self.job(directory, summary, LONGER_STEPS, "--loader-threads=2", "--checkpoint-every=5",
                           flags=["--max-restarts=1", "--max-restart-delay=0"])
        harness.wait_until(lambda: (steps_in(directory) or [0])[-1] >= 10, "step 10 is saved", 60)
        os.kill(workers_of(running.pid)[1], signal.SIGKILL)
        done = self.finish(running, timeout=120, code=0)
        self.assertRegex(done.stdout, r"goes on from step \d+, epoch ")
        reference.check_equal(self, checkpoints.load_json(summary), directory)

    def alone(self, *args):
        """Trains one epoch whose batches take long to make. Returns the summary and the output."""
        summary = os.path.join(self.scratch(), "summary.json")
        done = subprocess.run([TRAIN, *FEW, "--epochs=1", "--threads=1", f"--loader-delay-ms={DELAY_MS}", "--json", summary, *args],
                              env=harness.environment(), text=True, timeout=60, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return checkpoints.load_json(summary), done.stdout

    def test_a_slow_loader_is_in_the_summary_and_threads_help(self):
        slow, said = self.alone()
        self.assertGreaterEqual(slow["loading_seconds"], NUM_STEPS * DELAY_MS / 1000)
        self.assertLess(slow["loading_seconds"], slow["wall_seconds"])
        waited, whole = re.search(r"^train: waited ([\d.]+) s of ([\d.]+) s for batches \(--loader-threads 0\)$", said,
                                  re.M).groups()
        self.assertAlmostEqual(float(waited), slow["loading_seconds"], delta=0.06)
        self.assertAlmostEqual(float(whole), slow["wall_seconds"], delta=0.06)
        helped, _ = self.alone("--loader-threads=4")
        self.assertLess(helped["loading_seconds"], slow["loading_seconds"] / 2)

    def test_a_slow_loader_is_in_the_progress_page_of_every_rank(self):
        running = self.start("--standalone", "--nproc_per_node=2", TRAIN, *FEW, "--epochs=1000", "--loader-delay-ms=50")
        line = ""
        while "epoch 1/" not in line:
            line = running.stdout.readline()
            self.assertTrue(line, "it ended")
        for rank, pid in workers_of(running.pid).items():
            # The training thread makes the batches itself, and waits for each.
            self.assertGreaterEqual(progress_page_word(pid, LOADING), NUM_STEPS * 50_000_000, f"rank {rank}")
        running.terminate()
        self.finish(running)


if __name__ == "__main__":
    checkpoints.skip_without_train()
    harness.main()
