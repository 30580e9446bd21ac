#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests train --ignore-parameters: each rank trains these parameters by itself, and saves and loads its own ones."""
import array
import glob
import math
import os
import struct
import tempfile
import unittest

import checkpoints
import digits
from train_test import DDPRUN, TRAIN, run
import runner  # noqa: E402, found by train_test

IGNORED = {"fc1.bias": 128, "fc2.weight": 1280}
NUM_PARAMETERS = 1_199_882
LAST_STEP = 6  # 33 images in batches of 16, two epochs


class OwnTensors(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.scratch = directory.name
        self.data = os.path.join(self.scratch, "data")
        os.mkdir(self.data)
        digits.write_some(self.data, 33)

    def train(self, name, *flags, ranks=2, code=0, batch_size=16):
        """Trains. Returns the output, and the directory of the checkpoints."""
        directory = os.path.join(self.scratch, name)
        done = run([DDPRUN[0], "--standalone", f"--nproc_per_node={ranks}", TRAIN, f"--data={self.data}",
                    f"--batch-size={batch_size}", "--threads=1", f"--checkpoint-dir={directory}",
                    "--checkpoint-sharded", f"--json={directory}.json", *flags])
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout, directory

    @staticmethod
    def shard(directory, rank):
        """Returns the rank's own tensors and the others after the last step, as bytes by name."""
        path, = glob.glob(os.path.join(directory, f"step-{LAST_STEP:012}.*.rank-*{rank}-of-*2.safetensors"))
        _, entries, data = checkpoints.read(path)
        tensors = {name: data[slice(*entry["data_offsets"])] for name, entry in entries.items()}
        own = {name.removeprefix("own:"): value for name, value in tensors.items() if name.startswith("own:")}
        return own, {name: value for name, value in tensors.items() if not name.startswith("own:")}

    def check_own(self, directory):
        (mine, part), (theirs, other_part) = (self.shard(directory, rank) for rank in (0, 1))
        self.assertEqual(sorted(mine), sorted(theirs))
        self.assertEqual({name for name in mine if name.count(".") == 1}, set(IGNORED))
        self.assertGreater(len(mine), len(IGNORED), "the optimiser's state of them is a rank's own, too")
        for name, count in IGNORED.items():
            self.assertEqual(len(mine[name]), 4 * count)
            self.assertNotEqual(mine[name], theirs[name], f"{name} is the same on both ranks")
        averaged = {name for name in part | other_part if name.count(".") == 1}
        self.assertEqual(averaged, {f"{layer}.{kind}" for layer in ("conv1", "conv2", "fc1", "fc2")
                                    for kind in ("weight", "bias")} - set(IGNORED))
        return mine, theirs, part, other_part

    def test_ignored_parameters_are_each_ranks_own_and_go_on_as_such(self):
        for optimizer in ("sgd", "adadelta"):
            with self.subTest(optimizer=optimizer):
                flags = f"--optimizer={optimizer}", "--ignore-parameters=" + ",".join(IGNORED)
                _, whole = self.train("whole-" + optimizer, "--epochs=2", *flags)
                expected = self.check_own(whole)
                summary = checkpoints.load_json(whole + ".json")
                # The difference is padding: a bucket pads each gradient by less than 64 bytes.
                too_many = summary["gradient_bytes"] / LAST_STEP - 4 * (NUM_PARAMETERS - sum(IGNORED.values()))
                self.assertIn(too_many, range(8 * 64))

                self.train("cut-" + optimizer, "--epochs=1", *flags)
                output, cut = self.train("cut-" + optimizer, "--epochs=2", *flags[:1],
                                         "--ignore-parameters=" + ",".join(reversed(IGNORED)))
                self.assertIn("goes on from step 4", output)
                self.assertTrue(self.check_own(cut) == expected, "it does not go on bit for bit")
        output, _ = self.train("whole-sgd", "--epochs=3", "--optimizer=sgd", code=2)
        self.assertIn("--ignore-parameters is fc1.bias,fc2.weight there, none here", output)
        output, _ = self.train("whole-sgd", "--epochs=3", "--optimizer=sgd", "--ignore-parameters=fc1.bias,fc2.weight",
                               ranks=1, code=2)
        self.assertIn("does not have what is each rank's own (--ignore-parameters, --no-broadcast-buffers): it is of another "
                      "number of ranks", output)

    def test_own_parameters_that_are_no_numbers_on_one_rank_end_the_others_too(self):
        # A bias of minus infinity silences its unit, so losses and averages stay finite on both ranks.
        flags = "--optimizer=sgd", "--ignore-parameters=fc1.bias"
        _, directory = self.train("broken", "--epochs=1", *flags)
        path, = glob.glob(os.path.join(directory, "*.rank-*1-of-*2.safetensors"))
        metadata, tensors, data = checkpoints.read(path)
        begin = tensors["own:fc1.bias"]["data_offsets"][0]
        checkpoints.write(path, metadata, tensors, data[:begin] + struct.pack("<f", -math.inf) + data[begin + 4:])
        # A shell around each rank keeps the launcher from ending one because the other has ended.
        train = [TRAIN, f"--data={self.data}", "--batch-size=16", "--threads=1", "--epochs=2",
                 f"--checkpoint-dir={directory}", "--checkpoint-sharded", *flags]
        done = run([*DDPRUN, "sh", "-c", '"$@"; echo rank $RANK ends with $?', "sh", *train])
        for rank in (0, 1):
            self.assertIn(f"train: rank {rank}: the training has diverged: after step 6 weights are infinite",
                          done.stdout)
            self.assertIn(f"rank {rank} ends with 2", done.stdout)

    def running_means(self, directory, step, rank):
        """Returns the running means of the first normalisation that the rank saved, its own or the shared ones."""
        paths = glob.glob(os.path.join(directory, f"step-{step:012}.*.rank-*-of-*2.safetensors"))
        own = sorted(path for path in paths if "own:norm1.running_mean" in checkpoints.read(path)[1])
        if not own:
            return array.array("f", checkpoints.tensors_of(directory, step)["norm1.running_mean"][2])
        self.assertEqual(len(own), 2)
        _, entries, data = checkpoints.read(own[rank])
        return array.array("f", data[slice(*entries["own:norm1.running_mean"]["data_offsets"])])

    def test_each_rank_goes_on_from_its_own_with_no_broadcast_buffers(self):
        """Each rank has one of two images, and nothing is learnt, so the mean of a batch is one of two vectors. A
        rank's running mean is 0.9 of its own mean before (not rank 0's), plus 0.1 of the batch's mean."""
        digits.write_some(self.data, 2)
        flags = "--batch-norm", "--optimizer=sgd", "--lr=1e-30", "--checkpoint-keep=20"
        _, own = self.train("own", "--epochs=6", "--no-broadcast-buffers", *flags, batch_size=2)
        steps = [[self.running_means(own, step, rank) for step in range(1, 7)] for rank in (0, 1)]
        images = [steps[rank][0] for rank in (0, 1)]  # the means begin with 0, so this is 0.1 of the first batch's mean
        self.assertGreater(math.dist(*images), 0.001)

        def added(before, after):
            """Returns the image that was added between `before` and `after`; None: the difference is neither image."""
            rest = [b - 0.9 * a for a, b in zip(before, after)]
            fits = [i for i, image in enumerate(images) if math.dist(rest, image) < 1e-5 * math.hypot(*image)]
            return fits[0] if fits else None

        for step in range(1, 6):
            both = [added(steps[rank][step - 1], steps[rank][step]) for rank in (0, 1)]
            self.assertEqual(set(both), {0, 1}, f"step {step + 1}")

        _, sent = self.train("sent", "--epochs=6", *flags, batch_size=2)
        for step in range(1, 7):
            self.assertEqual(self.running_means(sent, step, 0), steps[0][step - 1], "rank 0's are the same")
        self.train("cut", "--epochs=3", "--no-broadcast-buffers", *flags, batch_size=2)
        output, cut = self.train("cut", "--epochs=6", "--no-broadcast-buffers", *flags, batch_size=2)
        self.assertIn("goes on from step 4", output)
        for rank in (0, 1):
            self.assertEqual(self.running_means(cut, 6, rank), steps[rank][5], "goes on bit for bit")
        output, _ = self.train("sent", "--epochs=7", *flags[1:], batch_size=2, code=2)
        self.assertIn("--batch-norm is set there, not here", output)

    def test_no_broadcast_buffers_is_what_the_ranks_average_by(self):
        """DistributedDataParallel compares the ranks' options. Only rank 0 has the flag, so the ranks differ."""
        script = '[ $RANK = 1 ] || set -- "$@" --no-broadcast-buffers; "$@"; echo rank $RANK ends with $?'
        done = run([*DDPRUN, "sh", "-c", script, "sh", TRAIN, f"--data={self.data}", "--epochs=1", "--threads=1"])
        for rank in (0, 1):
            self.assertIn(f"train: rank {rank}: the ranks' models differ: rank 1: option broadcast_buffers is on, on rank "
                          "0 it is off\n", done.stdout)
            self.assertIn(f"rank {rank} ends with 2\n", done.stdout)
        _, directory = self.train("own-buffers", "--epochs=1", "--optimizer=sgd", "--no-broadcast-buffers")
        _, other = self.train("sent-buffers", "--epochs=1", "--optimizer=sgd")
        mine, theirs = (checkpoints.tensors_of(path, LAST_STEP // 2) for path in (directory, other))
        self.assertEqual(mine, theirs, "without --batch-norm there are no buffers: it trains the same")

    def test_a_parameter_that_the_model_has_not_is_refused(self):
        done = run([TRAIN, f"--data={self.data}", "--ignore-parameters=fc3.bias"])
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn('"fc3.bias": the model has no parameter', done.stdout)


if __name__ == "__main__":
    checkpoints.skip_without_train()
    runner.main()
