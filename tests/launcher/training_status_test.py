#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that a loop, or DistributedDataParallel itself, reports its steps, and that GET /v1/jobs shows them."""
import json
import os
import signal
import sys
import unittest
import urllib.request

import harness

TRAIN, MINIMAL = (os.path.join(os.path.dirname(harness.DDPRUN), name) for name in ("train", "minimal_ddp"))

# A worker: rank r's losses are 1 + r. Each rank reports 100 samples twice, then waits until the test has seen this.
LOOP = """
import os, sys, time
import ddprun
rank, go_on = int(os.environ["RANK"]), sys.argv[1]
for step in range(41, 43):
    ddprun.step(step)
    ddprun.report(1 + rank, 100)
    ddprun.step_parts(step=0.5, forward=0.125 + 0.125 * rank, communication=0.25, exposed=0.125 * rank, bytes=1000)
while not os.path.exists(go_on): time.sleep(0.01)
ddprun.step(43)
ddprun.report(3 + rank, 500)
while not os.path.exists(go_on + "2"): time.sleep(0.01)
ddprun.phase("evaluate")
"""


class TrainingStatus(harness.Case):
    def job(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/jobs", timeout=5) as answer:
                return json.load(answer)["jobs"][0]
        except (OSError, IndexError):
            return {}

    def training(self):
        return self.job().get("training")

    def test_step_loss_samples_and_parts_of_all_ranks(self):
        self.check_loop()

    def test_the_same_is_told_if_hangs_are_not_looked_for(self):
        self.check_loop("--hang-action=off")

    def check_loop(self, *flags):
        self.port = harness.free_port()
        go_on = os.path.join(self.scratch(), "go_on")
        process = self.start("--nnodes=1", "--nproc_per_node=2", *flags, f"--rdzv-endpoint=127.0.0.1:{self.port}",
                             "--rdzv-id=job", sys.executable, "-c", LOOP, go_on,
                             PYTHONPATH=os.path.join(harness.SOURCE, "python"))
        harness.wait_until(lambda: (self.training() or {}).get("loss") == 1.5, "the ranks' mean loss is shown", 30)
        said = self.training()
        self.assertEqual(said["phase"], "train")
        self.assertIn(said["step"], (41, 42))
        open(go_on, "w").close()
        harness.wait_until(lambda: (self.training() or {}).get("loss") == 3.5, "the next step is shown", 30)
        said = self.training()
        self.assertEqual(said["step"], 43)
        self.assertGreater(said["samples_per_second"], 0)
        self.assertEqual(said["step_parts"], {
            "ranks": 2,
            "step_seconds": {"mean": 0.5, "worst": 0.5, "worst_rank": 0},
            "forward_seconds": {"mean": 0.1875, "worst": 0.25, "worst_rank": 1},
            "backward_seconds": {"mean": 0, "worst": 0, "worst_rank": 0},
            "communication_seconds": {"mean": 0.25, "worst": 0.25, "worst_rank": 0},
            "exposed_seconds": {"mean": 0.0625, "worst": 0.125, "worst_rank": 1},
            "loader_seconds": {"mean": 0, "worst": 0, "worst_rank": 0},
            "overlap": {"mean": 0.75, "worst": 0.5, "worst_rank": 1},
            "bytes_per_step": 1000})
        open(go_on + "2", "w").close()
        self.finish(process, code=0)

    @unittest.skipUnless(os.path.exists(TRAIN), "train is not built: there is no LibTorch")
    def test_ddp_tells_where_the_time_of_its_steps_goes(self):
        self.port = harness.free_port()
        process = self.start("--nnodes=1", "--nproc_per_node=2", f"--rdzv-endpoint=127.0.0.1:{self.port}",
                             "--rdzv-id=job", TRAIN, "--epochs=100000", "--threads=1", "--loader-delay-ms=4")
        harness.wait_until(lambda: (self.training() or {}).get("step_parts"), "what steps consist of is shown", 60)
        parts = self.training()["step_parts"]
        self.assertEqual(parts["ranks"], 2)
        for name in ("step", "forward", "backward", "communication", "exposed", "loader"):
            each = parts[name + "_seconds"]
            self.assertLessEqual(each["mean"], each["worst"] * 1.000001, (name, parts))
            self.assertIn(each["worst_rank"], (0, 1), (name, parts))
            self.assertLess(each["worst"], 5, (name, parts))
        mean = {name: parts[name + "_seconds"]["mean"] for name in ("step", "forward", "backward", "communication",
                                                                   "exposed", "loader")}
        self.assertGreater(mean["forward"], 0)
        self.assertGreater(mean["backward"], 0)
        self.assertGreater(mean["communication"], 0)
        self.assertGreaterEqual(mean["loader"], 0.004)
        self.assertLessEqual(mean["exposed"], mean["communication"])
        # Steps follow one another, except for the part of one that is under way at either end.
        self.assertGreater(mean["step"], 0.9 * (mean["forward"] + mean["backward"] + mean["loader"]), parts)
        self.assertAlmostEqual(parts["overlap"]["mean"], 1 - mean["exposed"] / mean["communication"], places=6)
        self.assertGreater(parts["bytes_per_step"], 4e6)  # the parameters are 1.2 million float32
        spent = self.job()["seconds"]
        self.assertTrue(0 < spent["communicators"] < 5, spent)
        process.send_signal(signal.SIGTERM)
        self.finish(process)

    @unittest.skipUnless(os.path.exists(MINIMAL), "minimal_ddp is not built: there is no LibTorch")
    def test_steps_advance_of_a_program_that_tells_nothing_itself(self):
        with open(os.path.join(harness.SOURCE, "examples/minimal_ddp/main.cc")) as f:
            self.assertNotIn("progress", f.read())
        self.port = harness.free_port()
        process = self.start("--nnodes=1", "--nproc_per_node=2", f"--rdzv-endpoint=127.0.0.1:{self.port}",
                             "--rdzv-id=job", MINIMAL, "1000000000")
        harness.wait_until(lambda: (self.training() or {}).get("step"), "a step is shown", 60)
        first = self.training()
        self.assertEqual(first["phase"], "train")
        harness.wait_until(lambda: (self.training() or {}).get("step", 0) > first["step"], "the step advances", 30)
        process.send_signal(signal.SIGTERM)
        self.finish(process)


if __name__ == "__main__":
    harness.main()
