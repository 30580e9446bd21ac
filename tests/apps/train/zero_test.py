#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests train --zero: it trains like train without it, loads either's checkpoints, refuses flags that don't fit."""
import os
import re
import subprocess

import checkpoints
import harness
from checkpoints import TRAIN, tensors_of
import digits

DDPRUN = [os.path.join(harness.BIN, "ddprun"), "--standalone"]


class Zero(harness.Case):
    def train(self, *args, ranks=2, code=0):
        launcher = DDPRUN + [f"--nproc_per_node={ranks}"] if ranks else []
        done = subprocess.run(launcher + [TRAIN, "--threads=1", "--batch-size=16", *args], text=True, timeout=120, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def setUp(self):
        super().setUp()
        self.data = self.scratch()
        digits.write_some(self.data, 33)  # three steps each epoch

    def saved_by(self, legs, *flags):
        """Runs several jobs, each with the next stage and number of epochs of `legs`. Each goes on from the one before.
        Returns the last tensors, and the output of all jobs."""
        directory, text, epochs = self.scratch(), "", 0
        for stage, more in legs:
            epochs += more
            text += self.train(f"--data={self.data}", "--checkpoint-dir", directory, f"--epochs={epochs}",
                               f"--zero={stage}", *flags)
        return tensors_of(directory, 3 * epochs), text

    def test_it_ends_bit_for_bit_where_training_without_does_whatever_the_stages_before_were(self):
        for order, flags in ("012", ["--optimizer=adamw", "--accumulate=2"]), (
                "120", ["--optimizer=sgd", "--amp=bf16", "--batch-norm", "--checkpoint-sharded"]):
            with self.subTest(flags=flags):
                plain, _ = self.saved_by([(0, 3)], *flags)
                found, text = self.saved_by([(stage, 1) for stage in order], *flags)
                self.assertEqual(text.count("goes on from step"), 2)
                self.assertEqual(sorted(found), sorted(plain))
                self.assertEqual([name for name in plain if found[name] != plain[name]], [])

    def test_clipping_and_a_scaler_come_to_the_same_loss(self):
        losses = {}
        for stage in (0, 1, 2):
            _, text = self.saved_by([(stage, 1)], "--optimizer=adam", "--clip-norm=0.5", "--amp=fp16")
            losses[stage] = float(re.search(r"epoch 1/1 +loss ([0-9.]+)", text)[1])
        self.assertAlmostEqual(losses[1], losses[0], delta=1e-3)
        self.assertAlmostEqual(losses[2], losses[0], delta=1e-3)

    def test_another_stage_on_one_rank_is_refused_by_name(self):
        script = f'exec "$0" --threads=1 --optimizer=sgd --epochs=1 --data={self.data} --zero=$((1 + RANK))'
        done = subprocess.run(DDPRUN + ["--nproc_per_node=2", "sh", "-c", script, TRAIN], text=True, timeout=120,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("rank 1: option zero is 2, on rank 0 it is 1", done.stdout)


if __name__ == "__main__":
    checkpoints.skip_without_train()
    harness.main()
