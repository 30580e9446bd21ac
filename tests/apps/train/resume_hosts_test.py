#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that train on one, two and three hosts, gone on from a checkpoint, ends bit for bit like an undisturbed run.
Between hosts the place in a bucket decides the order of addition, and which values travel as 16 bits. So the buckets
must be the undisturbed run's from the first step on. A run that begins with a copied checkpoint is like one that was
killed just after that checkpoint."""
import os

import checkpoints
import harness
import netns
import digits

PORT = 29400
NUM_IMAGES, BATCH, EPOCHS, LAST_STEP = 80, 16, 2, 10
ORDER = "gradient_order"  # a key of a checkpoint's metadata


class ResumeHosts(harness.HostsCase):
    def setUp(self):
        self.hosts = netns.Hosts(3)
        self.addCleanup(self.hosts.close)
        self.data = self.scratch()
        digits.write_some(self.data, NUM_IMAGES)

    def train(self, directory, num_hosts, *args):
        """Trains to the end with one rank on each host. Returns rank 0's output and the last checkpoint's tensors."""
        running = [self.start(f"--nnodes={num_hosts}", "--nproc_per_node=1", f"--rdzv-id={os.path.basename(directory)}",
                              f"--rdzv-endpoint={self.hosts[0].address}:{PORT}", checkpoints.TRAIN, f"--data={self.data}",
                              f"--batch-size={BATCH}", f"--epochs={EPOCHS}", "--threads=1", "--checkpoint-every=1", "--checkpoint-keep=100",
                              f"--checkpoint-dir={directory}", *args, host=self.hosts[i]) for i in range(num_hosts)]
        done = [self.finish(process, timeout=120) for process in running]
        text = "\n".join(each.text for each in done)
        self.assertEqual([each.returncode for each in done], [0] * num_hosts, text)
        return text, checkpoints.tensors_of(directory, LAST_STEP)

    def go_on(self, reference, step, num_hosts, *args, change=lambda metadata: metadata):
        """Goes on from `reference`'s checkpoint of `step`. Returns the tensors whose last values differ from the
        reference's."""
        directory = self.scratch()
        metadata, tensors, data = checkpoints.read(checkpoints.path_of(reference, step))
        checkpoints.write(checkpoints.path_of(directory, step), change(metadata), tensors, data)
        text, ends = self.train(directory, num_hosts, *args)
        self.assertIn(f"goes on from step {step + 1}, epoch ", text)
        there = checkpoints.tensors_of(reference, LAST_STEP)
        self.assertEqual(sorted(ends), sorted(there))
        return [name for name in ends if ends[name] != there[name]]

    def check(self, steps, num_hosts, *args):
        reference = self.scratch()
        self.train(reference, num_hosts, *args)
        orders = {checkpoints.read(checkpoints.path_of(reference, step))[0][ORDER] for step in range(1, LAST_STEP + 1)}
        self.assertEqual(len(orders), 1, "learned in the first step, and kept")
        self.assertEqual(len(orders.pop().split(",")), 8)
        for step in steps:
            self.assertEqual(self.go_on(reference, step, num_hosts, *args), [], f"from step {step}: not bit for bit")
        return reference

    def test_three_hosts(self):
        reference = self.check([1, 3], 3)
        # A checkpoint without the order is accepted, too. Its first step has other buckets, so here the result differs.
        differ = self.go_on(reference, 3, 3, change=lambda metadata: {k: v for k, v in metadata.items() if k != ORDER})
        self.assertIn("fc1.weight", differ)

    def test_two_hosts_between_which_16_bits_travel(self):
        self.check([3], 2, "--compress=bf16")

    def test_two_hosts_with_blocks_of_a_bucket(self):
        self.check([3], 2, "--compress=int8")

    def test_one_rank_with_the_largest_of_a_bucket(self):
        self.check([3], 1, "--compress=topk:0.05:2")

    def test_an_order_of_another_net_is_refused(self):
        reference = self.scratch()
        self.train(reference, 1)
        path = checkpoints.path_of(reference, LAST_STEP)
        metadata, tensors, data = checkpoints.read(path)
        checkpoints.write(path, {**metadata, ORDER: metadata[ORDER] + ",fc3.bias"}, tensors, data)
        done = self.ddprun("--standalone", "--nproc_per_node=2", checkpoints.TRAIN, f"--data={self.data}",
                           f"--batch-size={BATCH}", "--epochs=3", f"--checkpoint-dir={reference}", timeout=60, code=2)
        self.assertIn("the order of gradients does not fit the model: fc3.bias is no parameter", done.text)


if __name__ == "__main__":
    checkpoints.skip_without_train()
    harness.main_on_hosts()
