#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests train --mode=dp, whose ranks are threads of one process."""
import os

import checkpoints
import harness
from checkpoints import TRAIN
import digits

STEPS, EPOCHS = 8, 2


class Replicas(harness.Case):
    def train(self, *args, program):
        """Trains on a few digits. Returns the summary and the last checkpoint's tensors."""
        data = self.scratch()
        digits.write_some(data, digits.BATCH * STEPS)
        directory, summary = self.scratch(), os.path.join(self.scratch(), "summary.json")
        self.finish(self.start(*args, f"--data={data}", f"--batch-size={digits.BATCH}", f"--epochs={EPOCHS}",
                               "--threads=1", "--checkpoint-dir", directory, "--json", summary,
                               program=program, OMP_NUM_THREADS="1"), timeout=150, code=0)
        return checkpoints.load_json(summary), checkpoints.tensors_of(directory, STEPS * EPOCHS)

    def both(self, num_ranks, *flags):
        threads = self.train("--mode=dp", f"--replicas={num_ranks}", "--backend=host", *flags, program=TRAIN)
        processes = self.train("--standalone", f"--nproc_per_node={num_ranks}", TRAIN, "--backend=host", *flags,
                               program=harness.DDPRUN)
        return threads, processes

    def check_equal(self, num_ranks, *flags):
        (threads, p), (processes, q) = self.both(num_ranks, *flags)
        self.assertEqual(p, q, "parameters or running averages differ")
        self.assertEqual((threads["mode"], threads["world_size"]), ("dp", num_ranks))
        for mine, theirs in zip(threads["epochs"], processes["epochs"], strict=True):
            self.assertEqual(mine["test_loss"], theirs["test_loss"])
            self.assertEqual(mine["train_loss"], theirs["train_loss"])

    def test_two_threads_train_bit_for_bit_what_two_processes_do(self):
        self.check_equal(2)

    def test_three_threads_with_momentum_and_loader_threads(self):
        self.check_equal(3, "--optimizer=sgd", "--loader-threads=1", "--batch-norm")

    def test_an_error_of_one_replica_ends_all(self):
        data = self.scratch()
        digits.write_some(data, 1)
        done = self.finish(self.start("--mode=dp", "--replicas=2", "--backend=host", f"--data={data}",
                                      "--uneven-inputs=drop",
                                      program=TRAIN))
        self.check_one_line(done, "1 images are too few for 2 ranks")

    def test_it_is_refused_in_one_line_under_a_launcher_and_without_a_gpu(self):
        done = self.finish(self.start("--mode=dp", "--replicas=2", program=TRAIN, WORLD_SIZE="2", RANK="0"))
        self.check_one_line(done, "--mode=dp is for one process that no launcher has started (WORLD_SIZE is set)")
        if not os.path.exists("/dev/nvidiactl"):
            done = self.finish(self.start("--mode=dp", program=TRAIN))
            self.check_one_line(done, "--mode=dp: no GPU is to be seen: give --replicas=N")


if __name__ == "__main__":
    checkpoints.skip_without_train()
    harness.main()
