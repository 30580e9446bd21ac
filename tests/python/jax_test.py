#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests python/ddprun/jax.py: jax.distributed.initialize() without an argument, under ddprun. project.slurm tests it
within a Slurm step."""
import importlib.util
import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "../..")
BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(SOURCE, "build/release/bin"))
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import runner  # noqa: E402
import skips  # noqa: E402


class Jax(unittest.TestCase):
    def test_two_processes_find_each_other_whatever_slurm_says(self):
        # These are variables of a step with one process per node. Without the module JAX would use them.
        slurm = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
                 "SLURM_STEP_NODELIST": "localhost"}
        environment = {**os.environ, **slurm, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.path.join(SOURCE, "python")}
        # The second program of a worker must not meet at the first one's coordinator.
        twice = f"{sys.executable} {HERE}/jax_worker.py && exec {sys.executable} {HERE}/jax_worker.py"
        done = subprocess.run([os.path.join(BIN, "ddprun"), "--standalone", "--nproc_per_node=2", "--no-python",
                               "sh", "-c", twice], env=environment, text=True, timeout=100,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)
        for rank in (0, 1):
            self.assertEqual(done.stdout.count(f"process {rank} of 2: [0.0, 1.0]"), 2, done.stdout)
        self.assertEqual(done.stdout.count("the coordinator listens at ['127.0.0.1']"), 2, done.stdout)


if __name__ == "__main__":
    if importlib.util.find_spec("jax") is None:
        skips.skip_all(f"no JAX in {sys.executable}: scripts/setup.sh full")
    runner.main()
