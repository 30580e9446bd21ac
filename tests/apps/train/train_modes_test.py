#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests train --accumulate, --uneven-inputs and the ways to find unused parameters, on two ranks."""
import os
import tempfile
import unittest

import checkpoints
import digits
from train_test import DDPRUN, TRAIN, run
import runner  # noqa: E402, found by train_test

NUM_IMAGES = 33  # rank 0 has 17, rank 1 16: two steps of 8 images, and one more for rank 0


class Modes(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.scratch = directory.name
        self.data = os.path.join(self.scratch, "data")
        os.mkdir(self.data)

    def train(self, name, *flags):
        """Trains. Returns the summary, and the directory of the checkpoints."""
        directory = os.path.join(self.scratch, name)
        path = directory + ".json"
        done = run([*DDPRUN, TRAIN, f"--checkpoint-dir={directory}", f"--json={path}", *flags])
        self.assertEqual(done.returncode, 0, done.stdout)
        return checkpoints.load_json(path), directory

    def small(self, name, *flags):
        return self.train(name, f"--data={self.data}", "--batch-size=16", *flags)

    def test_accumulated_parts_make_as_many_steps_and_learn_as_well_as_whole_batches(self):
        """torch.ddp_modes shows that the accumulated gradients equal those of whole batches. Here they differ, because
        dropout draws other numbers."""
        few = digits.enough(24)
        summaries = [self.train(f"by{n}", *few, "--epochs=3", f"--accumulate={n}")[0] for n in (1, 3)]
        whole, parts = summaries
        self.assertEqual(parts["last_step"], whole["last_step"])
        first = [summary["epochs"][0]["train_loss"] for summary in summaries]
        self.assertLess(abs(first[1] / first[0] - 1), 0.1)
        self.assertNotEqual(*first)
        self.assertLess(abs(parts["test_accuracy"] - whole["test_accuracy"]), 0.06)

    def test_padded_and_dropped_tails(self):
        digits.write_some(self.data, NUM_IMAGES)
        self.assertEqual(self.small("pad", "--epochs=2")[0]["last_step"], 6)
        self.assertEqual(self.small("drop", "--epochs=2", "--uneven-inputs=drop")[0]["last_step"], 4)

    def test_joined_ranks_have_the_same_model_and_optimiser_as_the_others(self):
        # A run that goes on from a checkpoint has rank 0's model and running averages on both ranks. An uninterrupted
        # run must have the same, though rank 1 ran out of batches first in each epoch.
        digits.write_some(self.data, NUM_IMAGES)
        flags = ("--uneven-inputs=join", "--checkpoint-every=1", "--accumulate=2")
        whole, one = self.small("whole", "--epochs=4", *flags)
        self.assertEqual(whole["last_step"], 12)
        self.small("cut", "--epochs=2", *flags)
        cut, other = self.small("cut", "--epochs=4", *flags)
        self.assertEqual(cut["first_step"], 7)
        (_, names, p), (_, others, q) = (checkpoints.read(checkpoints.path_of(path, 12)) for path in (one, other))
        self.assertEqual(names, others)
        self.assertTrue(p == q, "parameters or running averages differ")
        for mine, theirs in zip(whole["epochs"], cut["epochs"], strict=True):
            self.assertEqual(mine["test_loss"], theirs["test_loss"])

    def test_each_way_to_find_unused_parameters_trains_the_same_if_all_are_used(self):
        digits.write_some(self.data, NUM_IMAGES)
        results = [self.small(flag or "plain", "--epochs=2", *([f"--{flag}"] if flag else []))[1]
                   for flag in ("", "find-unused-parameters", "static-graph")]
        plain, *others = [checkpoints.read(checkpoints.path_of(path, 6))[1:] for path in results]
        for other in others:
            self.assertTrue(other == plain, "parameters or running averages differ")

    def test_too_few_images_to_drop_some_are_told_in_one_line(self):
        digits.write_some(self.data, 1)
        done = run([*DDPRUN, TRAIN, f"--data={self.data}", "--uneven-inputs=drop"])
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("--uneven-inputs drop: 1 images are too few for 2 ranks", done.stdout)


if __name__ == "__main__":
    runner.main()
