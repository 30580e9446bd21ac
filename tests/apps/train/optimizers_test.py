#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests train's optimisers, schedules and mixed precision. They learn the digits, go on bit for bit from a checkpoint,
and refuse settings that don't fit."""
import os
import struct
import subprocess

import checkpoints
import harness
from checkpoints import TRAIN, path_of, steps_in, tensors_of
import digits

LEARNING = ("--epochs=3", *digits.enough(checkpoints.STEPS_PER_EPOCH))
DDPRUN = [os.path.join(harness.BIN, "ddprun"), "--standalone", "--nproc_per_node=2"]


class Optimizers(harness.Case):
    def train(self, *args, code=0, alone=False):
        """Runs a job of two ranks with one compute thread each; `alone`: one process. Returns the output."""
        done = subprocess.run((DDPRUN if not alone else []) + [TRAIN, "--threads=1", *args], text=True,
                              timeout=120, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def summary(self, *args):
        path = os.path.join(self.scratch(), "summary.json")
        self.train("--json", path, *args)
        return checkpoints.load_json(path)

    def test_each_learns_the_digits(self):
        for args, least in ((["--optimizer=sgd", "--schedule=cosine", "--warmup-steps=6"], 0.75),
                            (["--optimizer=adam", "--clip-norm=1", "--schedule=constant", "--batch-norm"], 0.85),
                            (["--optimizer=adamw", "--schedule=cosine", "--warmup-steps=6"], 0.8)):
            with self.subTest(args=args):
                found = self.summary(*LEARNING, *args)["test_accuracy"]
                print(" ".join(args), found)
                self.assertGreaterEqual(found, least)

    def test_mixed_precision_learns_as_well(self):
        few, losses = digits.enough(8), {}
        for amp in ("off", "bf16", "fp16"):
            epochs = self.summary(*few, "--epochs=2", "--optimizer=adam", f"--amp={amp}")["epochs"]
            losses[amp] = [epoch["train_loss"] for epoch in epochs]
        print(losses)
        full = losses.pop("off")
        self.assertLess(full[1], 0.9 * full[0])
        for amp, found in losses.items():
            for mine, wanted in zip(found, full, strict=True):
                self.assertAlmostEqual(mine / wanted, 1, delta=0.02, msg=amp)
                self.assertNotEqual(mine, wanted, amp)

    def test_steps_that_overflow_are_left_out_until_the_scale_fits(self):
        data, directory = self.scratch(), self.scratch()
        digits.write_some(data, 33)  # three steps each epoch
        flags = [f"--data={data}", "--batch-size=16", "--optimizer=sgd", "--amp=fp16", "--checkpoint-every=1", "--checkpoint-keep=20",
                 "--checkpoint-dir", directory]
        self.train("--epochs=1", *flags)
        metadata, entries, content = checkpoints.read(path_of(directory, 3))
        begin, end = entries["scaler.scale"]["data_offsets"]
        checkpoints.write(path_of(directory, 3), metadata, entries,
                          content[:begin] + struct.pack("<f", 2.0 ** 24) + content[end:])
        self.assertIn("goes on from step 4", self.train("--epochs=6", *flags))
        before, skipped = tensors_of(directory, 3), []
        for step in range(4, 19):
            after = tensors_of(directory, step)
            scales = [struct.unpack("<f", tensors["scaler.scale"][2])[0] for tensors in (before, after)]
            same = {before[name] == after[name] for name in after
                    if name.startswith(("conv", "fc")) and name.endswith(".weight")}
            skipped.append(scales[1] == scales[0] / 2)
            self.assertEqual(same, {skipped[-1]}, (step, scales))
            if not skipped[-1]:
                self.assertEqual(scales[1], scales[0])
            before = after
        self.assertTrue(skipped[0], "2^24 is too large")
        self.assertIn(False, skipped, "in the end it fits")

    def test_stopped_in_the_middle_it_goes_on_bit_for_bit(self):
        data = self.scratch()
        digits.write_some(data, 49)  # seven steps each epoch
        for args in (["--optimizer=adamw", "--warmup-steps=4", "--clip-norm=1", "--amp=fp16"],
                     ["--optimizer=sgd", "--weight-decay=0.001"]):
            with self.subTest(args=args):
                whole, cut = self.scratch(), self.scratch()
                args = [f"--data={data}", "--batch-size=8", *args]
                self.train("--epochs=2", "--checkpoint-dir", whole, *args)
                self.train("--epochs=1", "--checkpoint-every=5", "--checkpoint-dir", cut, *args)
                os.remove(path_of(cut, 7))
                self.assertEqual(steps_in(cut)[-1], 5)
                text = self.train("--epochs=2", "--checkpoint-dir", cut, *args)
                self.assertIn("goes on from step 6", text)
                _, tensors, content = checkpoints.read(path_of(whole, 14))
                _, resumed_tensors, resumed_content = checkpoints.read(path_of(cut, 14))
                self.assertEqual(resumed_tensors, tensors)
                self.assertTrue(resumed_content == content, "parameters or the optimiser's state differ")
                names = [name for name in tensors if name.endswith(".step")]
                self.assertEqual(len(names), 8)
                self.assertEqual("scaler.scale" in tensors, "--amp=fp16" in args)

    def test_another_optimizer_is_refused(self):
        directory, data = self.scratch(), self.scratch()
        digits.write_some(data, 9)
        self.train("--epochs=1", f"--data={data}", "--checkpoint-dir", directory, "--optimizer=sgd")
        before = steps_in(directory)
        text = self.train("--epochs=2", f"--data={data}", "--checkpoint-dir", directory, "--optimizer=adamw", code=2)
        self.assertIn("--optimizer is sgd there, adamw here", text)
        text = self.train("--epochs=2", f"--data={data}", "--checkpoint-dir", directory, "--optimizer=sgd", "--clip-norm=2", code=2)
        self.assertIn("--clip-norm is 0 there, 2 here", text)
        self.assertEqual(steps_in(directory), before)


if __name__ == "__main__":
    checkpoints.skip_without_train()
    harness.main()
