#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests train --sync-every (local SGD) and --mode=async (bounded staleness). Tests of learning use all shipped digits,
the others a few of them."""
import functools
import os
import re
import signal
import time

import checkpoints
import harness
from checkpoints import TRAIN
import digits

SPAWN_WORKER = os.path.join(harness.BIN, "spawn_worker")
PLAIN_SGD = ("--optimizer=sgd", "--momentum=0", "--lr=0.2")  # an optimiser without a state
DIGITS = ("--epochs=4", *digits.enough(24), "--optimizer=adam", "--lr=0.002", "--threads=1")
STEPS_PER_EPOCH, EPOCHS = 8, 3  # with the few digits
FEW_STEPS = STEPS_PER_EPOCH * EPOCHS
STALENESS = 3


@functools.cache
def few():
    return digits.few(STEPS_PER_EPOCH)


class Case(harness.Case):
    def job(self, directory, summary, *args, world=2, program=(TRAIN,)):
        return self.start("--standalone", f"--nproc_per_node={world}", *program, "--checkpoint-dir", directory,
                          "--json", summary, *args)

    def train(self, *args, **more):
        """Trains. Returns the summary, the directory of the checkpoints, and the output."""
        directory, summary = self.scratch(), os.path.join(self.scratch(), "summary.json")
        done = self.finish(self.job(directory, summary, *args, **more), timeout=150, code=0)
        return checkpoints.load_json(summary), directory, done.stdout

    def train_few(self, *args, epochs=EPOCHS, **more):
        return self.train(*few(), f"--epochs={epochs}", *args, **more)

    _in_step = None

    def in_step(self):
        """Returns the summary of a synchronous training on the digits, which runs once for all tests."""
        if Case._in_step is None:
            Case._in_step = self.train(*DIGITS)[0]
            self.assertGreater(Case._in_step["test_accuracy"], 0.9)
        return Case._in_step


class LocalSteps(Case):
    def test_it_learns_as_well_as_in_step(self):
        local, _, said = self.train(*DIGITS, "--sync-every=8")
        self.assertLess(self.in_step()["test_accuracy"] - local["test_accuracy"], 0.06)
        self.assertRegex(said, r"averaged 12 times, \d+\.\d MB sent per rank")

    def test_it_sends_an_eighth_of_the_bytes(self):
        plain, _, _ = self.train_few(*PLAIN_SGD)
        local, _, _ = self.train_few(*PLAIN_SGD, "--sync-every=8")
        self.assertEqual(local["averagings"], FEW_STEPS // 8)
        self.assertEqual(local["gradient_bytes_sent"], 0)
        # In both, tensors are padded to 64 bytes.
        self.assertAlmostEqual(plain["gradient_bytes_sent"] / local["averaging_bytes_sent"], 8, delta=0.01)

    def test_the_two_running_averages_of_adam_are_sent_and_no_number_of_updates(self):
        flags = ("--sync-every=8", "--sync-optimizer")
        parameters, _, _ = self.train_few(*PLAIN_SGD, *flags, epochs=1)
        with_state, _, _ = self.train_few("--optimizer=adam", *flags, epochs=1)
        self.assertEqual(with_state["averaging_bytes_sent"], 3 * parameters["averaging_bytes_sent"])

    def test_steps_of_all_come_before_where_asked_for(self):
        plain, _, _ = self.train_few()
        local, _, _ = self.train_few("--sync-every=4", f"--sync-after={STEPS_PER_EPOCH}")
        self.assertEqual(local["averagings"], (EPOCHS - 1) * STEPS_PER_EPOCH // 4)
        self.assertAlmostEqual(plain["gradient_bytes_sent"] / local["gradient_bytes_sent"], EPOCHS, delta=0.01)
        self.assertEqual(plain["epochs"][0]["test_loss"], local["epochs"][0]["test_loss"])
        self.assertNotEqual(plain["epochs"][1]["test_loss"], local["epochs"][1]["test_loss"])

    def test_all_ranks_have_one_model_at_the_end_of_each_epoch(self):
        # An epoch's steps aren't a multiple of three. Rank 1 writes half of a sharded checkpoint from its own memory.
        # Rank 0 writes all of the other checkpoint.
        flags = ("--sync-every=3", "--batch-norm")
        local, directory, _ = self.train_few(*flags, "--checkpoint-sharded")
        # The third epoch ends with one of the regular averagings.
        self.assertEqual(local["averagings"], FEW_STEPS // 3 + EPOCHS - 1)
        again, other, _ = self.train_few(*flags)
        self.assertEqual(checkpoints.tensors_of(directory, FEW_STEPS), checkpoints.tensors_of(other, FEW_STEPS))
        self.assertEqual(local["epochs"][-1]["test_loss"], again["epochs"][-1]["test_loss"])

    def test_a_job_that_is_preempted_goes_on_bit_for_bit_where_the_optimiser_is_averaged_too(self):
        flags = (*few(), f"--epochs={EPOCHS}", "--sync-every=4", "--sync-optimizer", "--loader-delay-ms=100")
        undisturbed, reference, _ = self.train(*flags)
        directory, path = self.scratch(), os.path.join(self.scratch(), "summary.json")
        running = self.job(directory, path, *flags)
        for line in running.stdout:
            if "epoch 1/3  loss" in line:
                break
        running.send_signal(signal.SIGUSR1)
        done = self.finish(running, timeout=120, code=75)
        step = int(re.search(r"asked to leave before step (\d+): saved", done.stdout).group(1))
        self.assertEqual((step - 1) % 4, 0)
        self.assertEqual(checkpoints.steps_in(directory)[-1], step - 1)
        done = self.finish(self.job(directory, path, *flags), timeout=120, code=0)
        self.assertIn(f"goes on from step {step}, epoch ", done.stdout)
        self.assertEqual(checkpoints.tensors_of(directory, FEW_STEPS), checkpoints.tensors_of(reference, FEW_STEPS))
        for mine, theirs in zip(checkpoints.load_json(path)["epochs"], undisturbed["epochs"], strict=True):
            self.assertEqual(mine["test_loss"], theirs["test_loss"])
        done = self.finish(self.job(directory, path, *few()), timeout=60, code=2)
        self.assertIn("what makes ranks step alone is --sync-every=4 --sync-after=0 --sync-optimizer there, none here",
                      done.text)


class Async(Case):
    def test_it_learns_as_well_as_ranks_in_step_do(self):
        for world in (2, 3):
            with self.subTest(world):
                summary, _, said = self.train(*DIGITS, "--mode=async", f"--staleness={STALENESS}", world=world)
                self.assertLess(self.in_step()["test_accuracy"] - summary["test_accuracy"], 0.06)
                self.assertEqual(summary["mode"], "async")
                self.assertLessEqual(summary["staleness_max"], STALENESS)
                self.assertGreater(summary["steps_per_second"], 0)
                self.assertRegex(said, r"train: \d+\.\d steps/s, ahead of the slowest rank by at most [0-3] steps, "
                                       r"\d\.\d\d on average")

    def slowed(self, *args):
        """Trains with a rank 1 that takes longer for each batch. Returns rank 0's summary."""
        script = f'[ "$RANK" = 1 ] && slow=--loader-delay-ms=300; exec {TRAIN} $slow "$@"'
        return self.train_few("--mode=async", *args, epochs=1, program=("--no-python", "sh", "-c", script, "sh"))[0]

    def test_a_fast_rank_goes_ahead_of_a_slow_one_but_not_too_far(self):
        summary = self.slowed(f"--staleness={STALENESS}")
        self.assertEqual(summary["staleness_max"], STALENESS)
        self.assertGreater(summary["staleness_mean"], 1)
        self.assertGreater(summary["exchange_seconds"], 0.3)  # rank 0 waited then
        self.assertEqual(self.slowed("--staleness=0")["staleness_max"], 0)

    def test_the_result_without_staleness_is_that_of_ranks_in_step_and_the_same_in_each_run(self):
        in_step, _, _ = self.train_few(*PLAIN_SGD)
        first, directory, _ = self.train_few("--mode=async", "--staleness=0", *PLAIN_SGD)
        _, other, _ = self.train_few("--mode=async", "--staleness=0", *PLAIN_SGD)
        self.assertEqual(checkpoints.tensors_of(directory, FEW_STEPS), checkpoints.tensors_of(other, FEW_STEPS))
        for mine, theirs in zip(first["epochs"], in_step["epochs"], strict=True):
            self.assertAlmostEqual(mine["test_loss"], theirs["test_loss"], delta=1e-3)

    def test_it_goes_on_from_an_epochs_end_with_another_number_of_ranks_and_alone(self):
        directory, summary = self.scratch(), os.path.join(self.scratch(), "summary.json")
        flags = (*few(), "--mode=async", "--checkpoint-dir", directory, "--json", summary)
        for epochs, launcher in ((1, [harness.DDPRUN, "--standalone", "--nproc_per_node=2", TRAIN]), (2, [TRAIN])):
            program, *words = launcher
            done = self.finish(self.start(*words, *flags, f"--epochs={epochs}", program=program), timeout=100, code=0)
        self.assertEqual(checkpoints.load_json(summary)["first_step"], STEPS_PER_EPOCH + 1)
        self.assertIn("ahead of the slowest rank by at most 0 steps", done.stdout)

    def test_a_rank_that_is_killed_is_named_and_nobody_hangs(self):
        # No launcher here: it would end the other ranks before they can print anything.
        store = self.start("serve", program=SPAWN_WORKER)
        port = store.stdout.readline().strip()
        place = {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
        jobs = [self.start(*few(), "--mode=async", "--epochs=10000", program=TRAIN, RANK=str(rank),
                           LOCAL_RANK=str(rank), **place) for rank in range(3)]
        for line in jobs[0].stdout:
            if "epoch 1/" in line:
                break
        jobs[1].kill()
        begin = time.monotonic()
        for rank in (0, 2):
            done = self.finish(jobs[rank], code=1)
            self.assertRegex(done.stderr, rf"train: rank {rank}: .*rank 1")
        self.assertLess(time.monotonic() - begin, 20)


if __name__ == "__main__":
    checkpoints.skip_without_train()
    harness.main()
