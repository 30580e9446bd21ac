#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs train on two hosts, of which one is preempted or lost in the middle. The same command, run again, ends with the
result of an undisturbed job."""
import os
import re
import shutil
import signal

import checkpoints
import digits
import harness
from checkpoints import FEW, LAST_STEP, LONGER_STEPS, TRAIN, steps_in

PORT = 29400
RUN = [f"--epochs={checkpoints.EPOCHS}", "--seed=5", "--threads=1", LONGER_STEPS]


class Preemption(harness.HostsCase):
    def job(self, directory, *args, data=FEW, nnodes="2"):
        """Starts two ranks on each host."""
        return [self.start(f"--nnodes={nnodes}", "--nproc_per_node=2", "--rdzv-id=job", "--last-call-timeout=5",
                           f"--rdzv-endpoint={self.hosts[0].address}:{PORT}",
                           TRAIN, *RUN, *data, "--checkpoint-dir", directory, *args, host=host)
                for host in self.hosts]

    def finish_both(self, running, codes):
        done = [self.finish(process, timeout=180) for process in running]
        self.transcript = "\n".join(each.text for each in done)
        self.assertEqual([each.returncode for each in done], codes, self.transcript)
        return done

    def await_first_epoch(self, running):
        for line in running[0].stdout:
            if "epoch 1/3  loss" in line:
                return
        self.fail("ended without its first epoch: " + self.finish(running[0]).text)

    def hide(self, directory):
        """Gives the second host another directory of this name, which is read-only."""
        done = self.hosts[1].run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", directory], capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_both_hosts_leave_with_75_and_the_same_command_goes_on(self):
        reference, directory = self.scratch(), self.scratch()
        summary = os.path.join(reference, "undisturbed.json"), os.path.join(directory, "summary.json")
        self.finish_both(self.job(reference, "--json", summary[0]), [0, 0])
        undisturbed = checkpoints.Undisturbed(checkpoints.load_json(summary[0]), reference)
        self.assertGreater(undisturbed.summary["test_accuracy"], 0.7)

        self.hide(directory)
        running = self.job(directory, "--json", summary[1])
        self.await_first_epoch(running)
        running[1].send_signal(signal.SIGUSR1)
        done = self.finish_both(running, [75, 75])
        step = int(re.search(r"asked to leave before step (\d+): saved", done[0].stdout).group(1))
        self.assertGreater(step, checkpoints.STEPS_PER_EPOCH)
        self.assertLess(step, LAST_STEP)
        self.assertEqual(steps_in(directory)[-1], step - 1)

        done = self.finish_both(self.job(directory, "--json", summary[1]), [0, 0])
        self.assertIn(f"goes on from step {step}, epoch ", done[0].stdout)
        self.assertNotIn("goes on", done[1].stdout)
        again = checkpoints.load_json(summary[1])
        self.assertEqual((again["first_step"], again["world_size"]), (step, 4))
        undisturbed.check_equal(self, again, directory)

    def uneven(self):
        """Returns flags with which rank 0 has one step more per epoch than the others, with four ranks and with two."""
        data = self.scratch()
        digits.write_some(data, (checkpoints.STEPS_PER_EPOCH - 1) * digits.BATCH + 1)
        return [f"--data={data}", f"--batch-size={digits.BATCH}", "--uneven-inputs=join"]

    def test_uneven_inputs_both_hosts_leave_within_an_epoch_and_end_as_if_they_had_not(self):
        flags, reference, directory = self.uneven(), self.scratch(), self.scratch()
        summary = os.path.join(reference, "undisturbed.json"), os.path.join(directory, "summary.json")
        self.finish_both(self.job(reference, "--json", summary[0], data=flags), [0, 0])
        undisturbed = checkpoints.Undisturbed(checkpoints.load_json(summary[0]), reference)
        self.assertGreater(undisturbed.summary["test_accuracy"], 0.7)

        running = self.job(directory, "--json", summary[1], data=flags)
        self.await_first_epoch(running)
        running[1].send_signal(signal.SIGUSR1)
        done = self.finish_both(running, [75, 75])
        step = int(re.search(r"asked to leave before step (\d+): saved", done[0].stdout).group(1))
        self.assertIn(step, range(checkpoints.STEPS_PER_EPOCH + 1, LAST_STEP))
        done = self.finish_both(self.job(directory, "--json", summary[1], data=flags), [0, 0])
        self.assertIn(f"goes on from step {step}, epoch ", done[0].stdout)
        undisturbed.check_equal(self, checkpoints.load_json(summary[1]), directory)

    def test_uneven_inputs_after_the_loss_of_a_host_the_other_ends_as_one_that_begins_at_the_checkpoint(self):
        flags, directory, copy = self.uneven(), self.scratch(), self.scratch()
        summary = os.path.join(directory, "summary.json"), os.path.join(copy, "copy.json")
        running = self.job(directory, "--json", summary[0], "--checkpoint-every=5", "--checkpoint-keep=100", data=flags,
                           nnodes="1:2")
        self.await_first_epoch(running)
        within = checkpoints.STEPS_PER_EPOCH + 5
        harness.wait_until(lambda: steps_in(directory)[-1] >= within, "one within epoch 2", 60)
        self.hosts[1].kill()
        done = self.finish(running[0], timeout=180, code=0)
        step = int(re.search(r"goes on from step (\d+), epoch ", done.stdout).group(1))
        self.assertGreater(step, within)
        result = checkpoints.load_json(summary[0])
        self.assertEqual((result["first_step"], result["last_step"], result["world_size"]), (step, LAST_STEP, 2))

        shutil.copy(checkpoints.path_of(directory, step - 1), copy)
        done = self.ddprun("--standalone", "--nproc_per_node=2", TRAIN, *RUN, "--checkpoint-dir", copy,
                           "--json", summary[1], *flags, host=self.hosts[0], timeout=180, code=0)
        self.assertIn(f"goes on from step {step}, epoch ", done.stdout)
        checkpoints.Undisturbed(checkpoints.load_json(summary[1]), copy).check_equal(self, result, directory)

    def test_the_job_goes_on_from_there_at_once_with_one_node_less(self):
        directory = self.scratch()
        summary = os.path.join(directory, "summary.json")
        running = self.job(directory, "--json", summary, nnodes="1:2")
        self.await_first_epoch(running)
        running[1].send_signal(signal.SIGUSR1)
        done = self.finish_both(running, [0, 75])
        step = int(re.search(r"asked to leave before step (\d+): saved", done[0].stdout).group(1))
        self.assertIn(f"goes on from step {step}, epoch ", done[0].stdout)
        result = checkpoints.load_json(summary)
        self.assertEqual((result["first_step"], result["last_step"], result["world_size"]), (step, LAST_STEP, 2))
        self.assertGreater(result["test_accuracy"], 0.7)
        self.assertNotIn("done again", done[0].stderr)  # no step was done again

    def test_the_job_goes_on_from_the_last_checkpoint_after_the_loss_of_a_host(self):
        directory = self.scratch()
        summary = os.path.join(directory, "summary.json")
        running = self.job(directory, "--json", summary, "--checkpoint-every=5", nnodes="1:2")
        self.await_first_epoch(running)
        harness.wait_until(lambda: steps_in(directory)[-1] > checkpoints.STEPS_PER_EPOCH, "one within epoch 2", 60)
        self.hosts[1].kill()
        done = self.finish(running[0], timeout=180, code=0)
        step = int(re.search(r"goes on from step (\d+), epoch ", done.stdout).group(1))
        self.assertIn(0, ((step - 1) % 5, (step - 1) % checkpoints.STEPS_PER_EPOCH))
        result = checkpoints.load_json(summary)
        self.assertEqual((result["first_step"], result["last_step"], result["world_size"]), (step, LAST_STEP, 2))
        self.assertGreater(result["test_accuracy"], 0.7)


if __name__ == "__main__":
    checkpoints.skip_without_train()
    harness.main_on_hosts()
