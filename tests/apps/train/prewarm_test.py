#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests train on a spare under --prewarm: it waits until it has a place, then goes on from the job's checkpoint."""
import os
import re

import checkpoints
import harness
from checkpoints import LAST_STEP, SHORT_RUN, TRAIN, steps_in


class Prewarm(harness.Case):
    def test_a_spare_waits_for_its_place_and_goes_on_from_the_checkpoint(self):
        reference, directory = self.scratch(), self.scratch()
        summary = os.path.join(reference, "undisturbed.json"), os.path.join(directory, "summary.json")
        self.ddprun("--standalone", "--nproc_per_node=1", TRAIN, *SHORT_RUN, "--threads=1",
                    "--checkpoint-dir", reference, "--json", summary[0], timeout=60, code=0)
        undisturbed = checkpoints.Undisturbed(checkpoints.load_json(summary[0]), reference)

        _, endpoint = self.ddprund()
        flags = [f"--rdzv-endpoint={endpoint}", "--rdzv-id=job", "--nnodes=1", "--spares=1", "--prewarm", TRAIN,
                 *SHORT_RUN, "--threads=1", "--checkpoint-dir", directory, "--checkpoint-every=1", "--json", summary[1]]
        first = self.start(*flags)
        self.await_line(first, "train: 1 rank, ", stream="stdout")
        spare = self.start(*flags)
        self.await_line(spare, "ready as spare (1 of 1)")
        self.await_line(first, "epoch 1/3  loss", stream="stdout")
        harness.wait_until(lambda: (steps_in(directory) or [0])[-1] > checkpoints.STEPS_PER_EPOCH, "epoch 2", 30)
        first.kill()
        done = self.finish(spare, timeout=60, code=0)
        self.assertNotIn("no launcher", done.text)
        self.assertNotIn("not every worker waits for its place", done.text)
        step = int(re.search(r"goes on from step (\d+), epoch ", done.stdout).group(1))
        again = checkpoints.load_json(summary[1])
        self.assertEqual((again["first_step"], again["last_step"], again["world_size"]), (step, LAST_STEP, 1))
        self.assertGreater(step, checkpoints.STEPS_PER_EPOCH)
        self.assertRegex(done.stdout, r"train: step [\d.]+ ms \(p95 [\d.]+\): forward [\d.]+, backward [\d.]+, data [\d.]+\n")
        undisturbed.check_equal(self, again, directory)


if __name__ == "__main__":
    checkpoints.skip_without_train()
    harness.main()
