#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests train --compress=…: it learns the digits as well as without it, and sends as many bytes as documented."""
import array
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(os.path.join(HERE, "../../..")))
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import runner  # noqa: E402
import digits  # noqa: E402

BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(SOURCE, "build/dev/bin"))
DROPPED = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "DDPRUN_RDZV", "PET_", "SLURM_")
# Epochs, and the least and the largest part of the gradients' bytes that is sent. The hooks that leave out most have
# their defaults, and as many epochs as train has. They average the first 24 of 120 steps uncompressed.
EPOCHS = 5
DIGITS = digits.enough(24)
FULL_NAMES = {"topk": "topk:0.02:24", "powersgd": "powersgd:4:24"}
RUNS = {"bf16": (2, 0.5, 0.5), "fp16": (2, 0.5, 0.5), "int8": (2, 0.2539, 0.2540),
        "topk": (EPOCHS, 0.2319, 0.2321), "powersgd": (EPOCHS, 0.225, 0.23)}


def train(compress, epochs, *more, ranks=2):
    """Trains. Returns the summary and the output. With one rank no launcher is needed."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "summary.json")
        argv = [os.path.join(BIN, "ddprun"), "--standalone", f"--nproc_per_node={ranks}"] if ranks > 1 else []
        argv += [os.path.join(BIN, "train"), f"--epochs={epochs}", "--threads=1", f"--compress={compress}",
                 "--json", path, *more]
        env = {k: v for k, v in os.environ.items() if not k.startswith(DROPPED)}
        done = subprocess.run(argv, env=env, text=True, timeout=100, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise AssertionError(f"{argv}: exit status {done.returncode}\n{done.stdout}")
        with open(path) as f:
            return json.load(f), done.stdout


class Compress(unittest.TestCase):
    def test_each_learns_as_well_as_without_and_sends_what_it_says(self):
        plain, output = train("none", EPOCHS, *DIGITS)
        self.assertEqual(plain["gradient_bytes_sent"], plain["gradient_bytes"])
        self.assertNotIn("of gradients sent", output)
        for compress, (epochs, low, high) in RUNS.items():
            with self.subTest(compress=compress):
                summary, output = train(compress, epochs, *DIGITS)
                accuracy = plain["epochs"][epochs - 1]["test_accuracy"]
                print(f"{compress}: {summary['test_accuracy']:.4f}, without {accuracy:.4f}")
                name = FULL_NAMES.get(compress, compress)
                self.assertEqual(summary["compress"], name)
                self.assertEqual(summary["gradient_bytes"] * EPOCHS, plain["gradient_bytes"] * epochs)
                self.assertGreaterEqual(summary["test_accuracy"], accuracy - 0.03)
                part = summary["gradient_bytes_sent"] / summary["gradient_bytes"]
                self.assertLessEqual(low, part)
                self.assertLessEqual(part, high)
                self.assertIn(f"train: compress {name}: ", output)
                self.assertIn(f"MB uncompressed: {100 * part:.2f} %", output)

    def test_the_state_of_a_hook_goes_on_from_a_checkpoint(self):
        with tempfile.TemporaryDirectory() as data:
            digits.write_some(data, 40)
            data = (f"--data={data}", "--batch-size=16")
            for compress, exact in (("topk:0.1:0", False), ("powersgd:2:1", True)):
                with self.subTest(compress=compress), tempfile.TemporaryDirectory() as directory:
                    whole, _ = train(compress, 2, *data, ranks=1)
                    train(compress, 1, *data, f"--checkpoint-dir={directory}", ranks=1)
                    rest, output = train(compress, 2, *data, f"--checkpoint-dir={directory}", ranks=1)
                    self.assertIn("goes on from step 4", output)
                    self.check_saved(directory, compress, num_steps=6)
                    for name in ("test_loss", "train_loss"):
                        losses = [run["epochs"][1][name] for run in (rest, whole)]
                        if exact:
                            self.assertEqual(*losses)
                        else:  # a new process begins with other buckets, whose largest elements are others
                            self.assertAlmostEqual(*losses, delta=0.1)
                    other, output = train(compress, 3, *data, f"--checkpoint-dir={directory}")
                    self.assertIn("goes on from step 7", output)
                    self.assertEqual(len(other["epochs"]), 3)
                    self.check_saved(directory, compress, num_steps=9)

    def check_saved(self, directory, compress, num_steps):
        """Checks that the checkpoint has the hook's state, which has counted the steps of all runs."""
        newest = sorted(name for name in os.listdir(directory) if name.endswith(".safetensors"))[-1]
        with open(os.path.join(directory, newest), "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            content = f.read()

        def values(name, typecode):
            begin, end = header["hook." + name]["data_offsets"]
            return array.array(typecode, content[begin:end])
        errors = values("error.fc1.weight", "f")
        self.assertEqual(list(values(compress.split(":")[0] + ".iterations", "q")), [num_steps])
        self.assertEqual(header["hook.error.fc1.weight"]["shape"], [128, 9216])
        self.assertGreater(max(map(abs, errors)), 0)
        self.assertEqual("hook.powersgd.q.fc1.weight" in header, compress.startswith("powersgd"))


if __name__ == "__main__":
    runner.main()
