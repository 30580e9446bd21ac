#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the real DeepSpeed under ddprun, and under `accelerate launch` whose workers ddprun starts. CI doesn't run this
test, because DeepSpeed compiles a library for a minute at its first start. scripts/torch_versions.sh does."""
import importlib.util
import os
import sys

import harness
import skips

COMPILES = 400  # seconds that DeepSpeed may take to compile


class DeepSpeed(harness.Job):
    def check(self, done):
        self.assertEqual(done.returncode, 0, self.transcript)
        said = self.lines(done.stdout, "trained to ")
        self.assertEqual(len(said), 2, self.transcript)
        self.assertEqual(len(set(said)), 1, self.transcript)
        self.assertTrue(said[0].endswith(" of 2 ranks, under ddprun: True"), self.transcript)

    def test_ddprun_in_torchruns_place(self):
        self.check(self.run_job("--standalone", "--nproc_per_node=2", harness.job("deepspeed_zero"), timeout=COMPILES,
                                DS_ACCELERATOR="cpu"))

    def test_accelerate_launch(self):
        source = os.path.join(harness.HERE, "../..")
        self.check(self.run_job(
            "--use_deepspeed", "--zero_stage=1", "--num_processes=2", "--num_machines=1", "--mixed_precision=no",
            "--dynamo_backend=no", "--main_process_port=0", harness.job("deepspeed_zero"), timeout=COMPILES,
            command=(sys.executable, "-m", "ddprun.compat", "accelerate", "launch"), DS_ACCELERATOR="cpu",
            DDPRUN_PROGRAM=harness.DDPRUN, PYTHONPATH=os.path.join(source, "python"),
            PATH=os.path.dirname(sys.executable) + ":" + os.environ["PATH"]))


if __name__ == "__main__":
    for name in ("deepspeed", "accelerate"):
        if not importlib.util.find_spec(name):
            skips.skip_all(f"no {name} in {sys.executable}")
    harness.main()
