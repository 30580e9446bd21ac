#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests train with --recovery=inplace: when a rank is killed, the others go on in their processes. They end bit for bit
like a run of two parts. Its first part has all ranks up to the snapshot, its second part the ranks that were left.
DDPRUN_NUM_KILLS: number of jobs with a kill at a random moment (3). DDPRUN_TEST_SEED: selects moments and ranks."""
import os
import random
import re
import shutil
import signal

import checkpoints
import files
import harness
import seeds
from checkpoint_test import STEPS_DONE, progress_page_word, workers_of
from checkpoints import TRAIN, path_of, steps_in

NUM_KILLS = int(os.environ.get("DDPRUN_NUM_KILLS", 3))
EPOCHS, RANKS, EVERY = 2, 3, 3
LAST_STEP = EPOCHS * checkpoints.STEPS_PER_EPOCH
RUN = [*checkpoints.FEW, f"--epochs={EPOCHS}", "--seed=5", "--threads=1", f"--checkpoint-every={EVERY}", "--checkpoint-keep=1000"]


class InPlace(harness.Case):
    def job(self, directory, *flags, ranks=RANKS, snapshot_every=EVERY):
        return self.start("--standalone", f"--nproc_per_node={ranks}", *flags, TRAIN, *RUN, checkpoints.LONGER_STEPS,
                          f"--snapshot-every={snapshot_every}", "--checkpoint-dir", directory, "--json", os.path.join(directory, "summary.json"))

    def trained(self, directory, ranks):
        self.finish(self.job(directory, ranks=ranks), timeout=120, code=0)
        return checkpoints.load_json(os.path.join(directory, "summary.json"))

    @classmethod
    def setUpClass(cls):
        cls.whole = files.scratch_of_class(cls)  # has the run without a kill, once a test needs it

    def reference(self, step):
        """Returns the summary and the directory of a run with all ranks up to `step`, and with two of them after it."""
        if not steps_in(self.whole):
            self.trained(self.whole, RANKS)
        directory = self.scratch()
        shutil.copy(path_of(self.whole, step), directory)
        return self.trained(directory, RANKS - 1), directory

    def kill_one(self, job, rank, at_step):
        pids = {}

        def time_has_come():
            pids.update(workers_of(job.pid))
            try:
                return rank in pids and progress_page_word(pids[rank], STEPS_DONE) >= at_step
            except (OSError, ValueError):
                return job.poll() is not None
        harness.wait_until(time_has_come, f"rank {rank} comes to step {at_step}", 60)
        os.kill(pids[rank], signal.SIGKILL)
        return pids

    def check(self, rank, at_step):
        directory = self.scratch()
        job = self.job(directory, "--recovery=inplace", "--max-restarts=1")
        self.kill_one(job, rank, at_step)
        done = self.finish(job, timeout=120, code=0)
        went_on = re.search(r"train: goes on from step (\d+), epoch \d/\d: memory", done.stdout)
        if not went_on:  # the kill came before the first snapshot
            return False
        step = int(went_on.group(1)) - 1
        expected, other = self.reference(step)
        found = checkpoints.load_json(os.path.join(directory, "summary.json"))
        self.assertEqual([epoch["test_loss"] for epoch in found["epochs"]],
                         [epoch["test_loss"] for epoch in expected["epochs"]], f"killed at {at_step}: {done.text}")
        self.assertEqual(checkpoints.tensors_of(directory, steps_in(directory)[-1]),
                         checkpoints.tensors_of(other, steps_in(other)[-1]))
        return True

    def test_ends_where_fewer_ranks_from_the_snapshot_on_end(self):
        self.assertTrue(self.check(rank=2, at_step=8))

    def test_each_checkpoint_is_a_snapshot_if_snapshots_are_rarer(self):
        job = self.job(self.scratch(), "--recovery=inplace", "--max-restarts=1", snapshot_every=1000)
        self.kill_one(job, rank=1, at_step=8)
        done = self.finish(job, timeout=120, code=0)
        went_on = re.search(r"train: goes on from step (\d+), epoch 1/2: memory", done.stdout)
        self.assertTrue(went_on, done.text)
        self.assertGreaterEqual(int(went_on.group(1)), 7, done.text)

    def test_a_rank_whose_agent_does_not_answer_trains_with_the_others(self):
        """Such a rank can't offer to go on. It takes snapshots with the others, because all ranks take them together."""
        script = f'[ $RANK = 1 ] && unset DDPRUN_AGENT_SOCKET; exec {TRAIN} "$@"'
        done = self.finish(self.start("--standalone", "--nproc_per_node=2", "--recovery=inplace", "--no-python", "sh",
                                      "-c", script, "sh", *checkpoints.FEW, "--epochs=1", "--threads=1", f"--snapshot-every={EVERY}"))
        self.assertEqual(done.returncode, 0, done.text)

    def test_kills_at_random_moments_are_recovered_from(self):
        draw = random.Random(seeds.seed())
        for number in range(NUM_KILLS):
            with self.subTest(number=number):
                self.check(draw.randrange(RANKS), draw.randrange(1, LAST_STEP - 5))


if __name__ == "__main__":
    checkpoints.skip_without_train()
    harness.main()
