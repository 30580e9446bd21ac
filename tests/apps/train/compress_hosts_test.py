#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs train --compress=… on two hosts with two ranks each. The training is the same as on one host with four ranks.
It sends as many bytes as docs/compression.md says."""
import math
import os

import checkpoints
import harness
import digits

PORT = 29400
NUM_IMAGES, BATCH, EPOCHS, LAST_STEP = 80, 16, 2, 10
NUM_GRADIENTS = 1_199_882
# The largest difference between parameters at the end. Each rank adds gathered values in the order of the ranks, so
# hosts don't matter. An all-reduce makes its sums within each host first. In 16 bits these are rounded there, too.
HOOKS = {"none": 1e-5, "fp16": 1e-3, "bf16": 1e-2, "int8": 0, "topk:0.05:0": 0, "powersgd:2:1": 1e-2}
GATHERED = ("int8", "topk:0.05:0")


def float32s(content):
    return memoryview(content).cast("f").tolist()


class CompressHosts(harness.HostsCase):
    trained = {}  # compression → parameters of a run on two hosts

    def train(self, compress, name, per_node, *flags, hosts=(None,)):
        """Trains. Returns the summary, and the parameters by name."""
        directory = os.path.join(self.directory, name)
        summary = directory + ".json"
        running = [self.start(*flags, f"--nproc_per_node={per_node}", checkpoints.TRAIN, f"--data={self.data}",
                              f"--batch-size={BATCH}", f"--epochs={EPOCHS}", "--optimizer=sgd", "--threads=1", f"--compress={compress}",
                              f"--checkpoint-dir={directory}", f"--json={summary}", host=host) for host in hosts]
        done = [self.finish(process, timeout=120) for process in running]
        text = "\n".join(each.text for each in done)
        self.assertEqual([each.returncode for each in done], [0] * len(done), text)
        parameters = {name: content[2] for name, content in checkpoints.tensors_of(directory, LAST_STEP).items()
                      if name.split(".")[0] in ("conv1", "conv2", "fc1", "fc2")}
        self.assertEqual(len(parameters), 8)
        return checkpoints.load_json(summary), parameters

    def sent_by_second_host(self):
        """Returns the number of bytes that the second host has sent so far."""
        text = self.hosts[1].run(["cat", "/proc/net/dev"], capture_output=True, text=True, timeout=10).stdout
        return int(next(line.split(":")[1].split()[8] for line in text.splitlines() if "eth0:" in line))

    def on_hosts(self, compress, name):
        before = self.sent_by_second_host()
        result = self.train(compress, name, 2, "--nnodes=2", f"--rdzv-id={name}",
                            f"--rdzv-endpoint={self.hosts[0].address}:{PORT}", hosts=self.hosts)
        return *result, self.sent_by_second_host() - before

    def check_sent(self, compress, summary, on_wire):
        """Checks the bytes that a rank gives to collectives, and the bytes that these send from host to host."""
        sent, steps = summary["gradient_bytes_sent"], LAST_STEP
        whole = summary["gradient_bytes"]
        self.assertGreaterEqual(whole, 4 * NUM_GRADIENTS * steps)
        self.assertLess(whole, 4.001 * NUM_GRADIENTS * steps)  # gradients are padded
        expected = {"none": 4 * NUM_GRADIENTS, "fp16": 2 * NUM_GRADIENTS, "bf16": 2 * NUM_GRADIENTS,
                    "int8": NUM_GRADIENTS * (1 + 1 / 64), "topk:0.05:0": 8 * 0.05 * NUM_GRADIENTS}
        if compress in expected:
            self.assertAlmostEqual(sent / steps / expected[compress], 1, delta=0.001)
        else:  # the first step is uncompressed; fc1 is 128 × 9216, conv2 64 × 288, fc2 10 × 128, conv1 32 × 9
            per_step = 4 * (2 * (128 + 9216 + 64 + 288 + 10 + 128 + 32 + 9) + 32 + 64 + 128 + 10)
            self.assertAlmostEqual(sent / (whole / steps + per_step * (steps - 1)), 1, delta=0.001)
        # In an all-reduce of two hosts each sends the other's half, and later the sums of its own half: all of it,
        # once. In a gather it sends the parts of its two ranks. At each epoch's end a checkpoint has the mean of the
        # errors that the ranks' hooks keep.
        num_errors = {"topk:0.05:0": NUM_GRADIENTS, "powersgd:2:1": NUM_GRADIENTS - (32 + 64 + 128 + 10)}.get(compress, 0)
        expected_on_wire = sent * (2 if compress in GATHERED else 1) + EPOCHS * 4 * num_errors
        self.assertGreater(on_wire, expected_on_wire)
        self.assertLess(on_wire, 1.1 * expected_on_wire + 500_000, "packets' headers and the rest of the job")

    def test_each_hook_trains_as_on_one_host(self):
        self.directory = self.scratch()
        self.data = self.scratch()
        digits.write_some(self.data, NUM_IMAGES)
        for compress, tolerance in HOOKS.items():
            with self.subTest(compress=compress):
                name = compress.replace(":", "-")
                one, p = self.train(compress, "one-" + name, 4, "--standalone")
                two, q, on_wire = self.on_hosts(compress, "two-" + name)
                self.trained[compress] = q
                self.assertEqual((one["world_size"], two["world_size"]), (4, 4))
                self.assertEqual(one["gradient_bytes_sent"], two["gradient_bytes_sent"])
                losses = [summary["epochs"][-1]["test_loss"] for summary in (one, two)]
                print(f"{compress}: {two['gradient_bytes_sent']} of {two['gradient_bytes']} bytes, "
                      f"{on_wire} on the wire, loss {losses[0]} and {losses[1]}", flush=True)
                self.check_sent(compress, two, on_wire)
                if tolerance == 0:
                    self.assertEqual([n for n in p if p[n] != q[n]], [], "parameters differ")
                    self.assertEqual(*losses)
                    continue
                for name in p:
                    a, b = float32s(p[name]), float32s(q[name])
                    self.assertLessEqual(math.dist(a, b), tolerance * math.hypot(*b), name)

    def test_the_same_hosts_give_the_same_bits(self):
        self.directory = self.scratch()
        self.data = self.scratch()
        digits.write_some(self.data, NUM_IMAGES)
        for compress in ("bf16", "powersgd:2:1"):
            with self.subTest(compress=compress):
                name = compress.replace(":", "-")
                p = self.trained.get(compress) or self.on_hosts(compress, name + "-1")[1]
                q = self.on_hosts(compress, name + "-2")[1]
                self.assertEqual([n for n in p if p[n] != q[n]], [], "parameters differ")


if __name__ == "__main__":
    checkpoints.skip_without_train()
    harness.main_on_hosts()
