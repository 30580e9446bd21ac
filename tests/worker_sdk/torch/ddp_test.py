#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests DistributedDataParallel's properties on 1, 2 and 4 real ranks. ddp_worker.cc has the checks."""
import os
import subprocess
import time

import ranks
import runner  # noqa: E402, found by ranks

WORKER = os.path.join(ranks.BIN, "ddp_worker")


class Ddp(ranks.RanksTest):
    def run_mode(self, mode, world, *arguments):
        return self.run_ranks(world, [WORKER, mode, *arguments])

    def test_gradients_buffers_no_sync_zero_grad_and_layouts(self):
        for world in (1, 2, 4):
            with self.subTest(world=world):
                self.run_mode("state", world)

    def test_all_reduce_overlaps_with_backward(self):
        print(self.run_mode("overlap", 2)[0].strip())

    def test_models_that_differ_are_refused_on_every_rank(self):
        for world in (2, 3):
            with self.subTest(world=world):
                self.run_mode("mismatch", world)

    def test_a_rank_that_goes_forward_alone_hears_what_it_sent(self):
        self.run_mode("alone", 2)

    def test_an_unused_parameter_is_named(self):
        for world in (1, 2, 3):
            with self.subTest(world=world):
                self.run_mode("unused", world)

    def test_a_parameter_that_would_not_be_averaged_is_refused(self):
        for world in (1, 2):
            with self.subTest(world=world):
                self.run_mode("misuse", world)

    def test_gradients_travel_in_half_precision_where_they_lie(self):
        for world in (1, 2, 3):
            with self.subTest(world=world):
                self.run_mode("cast", world)

    def test_an_order_that_is_given_makes_the_buckets_from_the_first_step_on(self):
        for world in (1, 2):
            with self.subTest(world=world):
                self.run_mode("order", world)

    def test_libtorchs_current_stream_is_handed_to_the_communicator(self):
        for world in (1, 2):
            with self.subTest(world=world):
                self.run_mode("streams", world, self.scratch())

    def test_a_rank_that_dies_in_training_is_named_by_the_others(self):
        train = [os.path.join(ranks.BIN, "train"), "--epochs=1000"]
        job = self.start_ranks(2, train)
        for line in job.processes[0].stdout:
            if "epoch 1/" in line:
                break
        job.processes[1].kill()
        begin = time.monotonic()
        codes, outputs = job.wait()
        self.assertEqual(codes, [1, -9])
        self.assertIn("train: rank 0: ", outputs[0])
        self.assertIn("rank 1", outputs[0])
        self.assertLess(time.monotonic() - begin, 10)

    def test_a_rank_whose_gradient_has_nan_is_named_with_the_parameter(self):
        for argv in ([WORKER, "nan", "option"], ["env", "DDPRUN_DEBUG=nan", WORKER, "nan"]):
            with self.subTest(argv=argv):
                job = self.start_ranks(2, argv)
                codes, outputs = job.wait()
                self.assertEqual(codes, [1, 1], outputs)
                said = "the gradient of 1.bias on rank 1 has NaN, before it is averaged"
                self.assertIn("ddp_worker: " + said, outputs[1])
                self.assertRegex(outputs[0], "ddp_worker: .*" + said)
                self.assertIn("three steps were well", outputs[0])

    def test_it_works_without_a_launcher(self):
        env = {k: v for k, v in os.environ.items() if k != "WORLD_SIZE"}
        subprocess.run([WORKER, "state"], env=env, check=True, timeout=60)


if __name__ == "__main__":
    ranks.skip_without_pytorch()
    runner.main()
