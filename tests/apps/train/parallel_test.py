#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests train --parallel: every layout of the net on the ranks has the losses of one process. A run goes on from
another layout's checkpoint."""
import os
import tempfile
import unittest

import checkpoints
import runner
from train_test import DDPRUN, TRAIN, run

# On a CPU with AVX-512 oneDNN takes other algorithms for smaller batches. Their sums differ in the fourth digit.
os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"
LAYOUTS = "dp4", "tp2xdp2", "pp2xdp2", "pp2xtp2"
CLOSE = 5e-5  # bound for losses and accuracies, whose float32 sums have another order
FLAGS = *checkpoints.FEW, "--threads=1", "--seed=3", "--optimizer=sgd", "--lr=0.02"


class Parallel(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.scratch = directory.name

    def train(self, *flags, layout="", code=0, ranks=4):
        """Trains. Returns the losses and the accuracy by epoch, and the output."""
        json = os.path.join(self.scratch, "summary.json")
        command = [TRAIN, f"--json={json}", *FLAGS, *flags]
        if layout:
            command = [DDPRUN[0], "--standalone", f"--nproc_per_node={ranks}", *command, f"--parallel={layout}"]
        done = run(command)
        self.assertEqual(done.returncode, code, done.stdout)
        if code:
            return None, done.stdout
        epochs = checkpoints.load_json(json)["epochs"]
        return [(e["train_loss"], e["test_loss"], e["test_accuracy"]) for e in epochs], done.stdout

    def check_close(self, losses, expected, what):
        self.assertEqual(len(losses), len(expected))
        for epoch, (mine, one) in enumerate(zip(losses, expected), 1):
            for name, a, b in zip(("train loss", "test loss", "accuracy"), mine, one):
                self.assertLess(abs(a - b), CLOSE, f"{what}, epoch {epoch}: {name} {a}, of one process {b}")

    def test_losses_are_those_of_one_process(self):
        expected, _ = self.train("--epochs=2")
        for layout in LAYOUTS:
            with self.subTest(layout):
                losses, output = self.train("--epochs=2", layout=layout)
                self.assertIn(f"laid out as {layout.replace('tp2xdp2', 'dp2xtp2')}", output)
                self.check_close(losses, expected, layout)
        # Tests plain model parallelism, one stage after the other, and GPipe's order.
        for layout, flags in (("pp4", ["--accumulate=1"]), ("pp2xdp2", ["--pipeline=gpipe", "--accumulate=4"])):
            with self.subTest(flags):
                losses, _ = self.train("--epochs=1", *flags, layout=layout)
                self.check_close(losses, expected[:1], f"{layout} {flags}")

    def test_each_layout_goes_on_from_anothers_checkpoint(self):
        expected, _ = self.train("--epochs=4", "--momentum=0.5")
        kept = f"--checkpoint-dir={os.path.join(self.scratch, 'kept')}", "--momentum=0.5"
        for epochs, layout, ranks in ((1, "tp2", 2), (2, "", 1), (3, "pp2", 2), (4, "", 1)):
            losses, output = self.train(f"--epochs={epochs}", *kept, layout=layout, ranks=ranks)
            self.check_close(losses, expected[:epochs], f"up to epoch {epochs}, last {layout or 'one process'}")
            if epochs > 1:
                self.assertIn(f"goes on from step {(epochs - 1) * checkpoints.STEPS_PER_EPOCH + 1}", output)
        # One process wrote the last checkpoint. Here stages and features share its tensors.
        losses, _ = self.train("--epochs=5", *kept, layout="pp2xtp2")
        self.check_close(losses[:4], expected, "before the last epoch")
        self.check_close(losses[4:], self.train("--epochs=5", "--momentum=0.5")[0][4:], "pp2xtp2, after one process")

    def test_an_impossible_layout_is_said_in_one_line(self):
        for layout, ranks, said in (
                ("dp4", 2, "a mesh of dp4 is 4 ranks, there are 2"),
                ("pp5", 5, "the net has 4 layers, too few for 5 pipeline stages"),
                ("tp3", 3, "can't be")):
            with self.subTest(layout):
                _, output = self.train("--epochs=1", layout=layout, ranks=ranks, code=2)
                self.assertIn(said, output)


if __name__ == "__main__":
    checkpoints.skip_without_train()
    runner.main()
