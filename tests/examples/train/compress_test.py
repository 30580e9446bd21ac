#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""train --compress=…: the digits are learned as well as without, with the bytes that it says."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(os.path.join(HERE, "../../..")))
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import runner  # noqa: E402

BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(SOURCE, "build/dev/bin"))
DROPPED = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "DDPRUN_RDZV", "PET_", "SLURM_")
# Epochs, and the least and the largest part of the gradients' bytes that is sent.
RUNS = {"bf16": (2, 0.5, 0.5), "fp16": (2, 0.5, 0.5), "int8": (2, 0.2539, 0.2540),
        "topk:0.1": (3, 0.1999, 0.2001), "powersgd:4:8": (2, 0.19, 0.21)}


def train(compress, epochs):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "summary.json")
        argv = [os.path.join(BIN, "ddprun"), "--standalone", "--nproc_per_node=2", os.path.join(BIN, "train"),
                f"--epochs={epochs}", "--threads=1", f"--compress={compress}", "--json", path]
        env = {k: v for k, v in os.environ.items() if not k.startswith(DROPPED)}
        done = subprocess.run(argv, env=env, text=True, timeout=100, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise AssertionError(f"{argv}: exit status {done.returncode}\n{done.stdout}")
        with open(path) as f:
            return json.load(f), done.stdout


class Compress(unittest.TestCase):
    def test_each_learns_as_well_as_without_and_sends_what_it_says(self):
        plain, output = train("none", 3)
        self.assertEqual(plain["gradient_bytes_sent"], plain["gradient_bytes"])
        self.assertNotIn("of gradients sent", output)
        for compress, (epochs, low, high) in RUNS.items():
            with self.subTest(compress=compress):
                summary, output = train(compress, epochs)
                accuracy = plain["epochs"][epochs - 1]["test_accuracy"]
                print(f"{compress}: {summary['test_accuracy']:.4f}, without {accuracy:.4f}")
                self.assertEqual(summary["compress"], compress)
                self.assertEqual(summary["gradient_bytes"] * 3, plain["gradient_bytes"] * epochs)
                self.assertGreaterEqual(summary["test_accuracy"], accuracy - 0.01)
                part = summary["gradient_bytes_sent"] / summary["gradient_bytes"]
                self.assertLessEqual(low, part)
                self.assertLessEqual(part, high)
                self.assertIn(f"train: compress {compress}: ", output)
                self.assertIn(f"MB uncompressed: {100 * part:.2f} %", output)


if __name__ == "__main__":
    runner.main()
