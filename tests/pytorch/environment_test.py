#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares a worker's environment and arguments under torchrun and under ddprun."""
import importlib.metadata
import os
import sys
import unittest

import harness
import skips

TORCHRUN = os.path.join(os.path.dirname(sys.executable), "torchrun")
# These values differ on purpose. docs/torchrun.md has the reasons.
OURS_TO_CHOOSE = {
    "TORCHELASTIC_RUN_ID",       # a random id in both
    "TORCHELASTIC_ERROR_FILE",   # a path in a temporary directory in both
    "MASTER_ADDR",               # an address, never a name that the user did not give
    "MASTER_PORT",
}
OF_LATER_VERSIONS = {"TORCHELASTIC_SIGNALS_TO_HANDLE"}  # ddprun sets them for workers of an older PyTorch, too
NOT_THE_LAUNCHERS = {"_", "SHLVL", "PWD", "OLDPWD", "LD_LIBRARY_PATH", "SHOW_DIRECTORY"}


class Environment(harness.Job):
    def given(self, command, *flags):
        with harness.scratch() as directory:
            done = self.run_job(*flags, harness.job("show"), "--flag", "a b", command=command,
                                SHOW_DIRECTORY=directory)
            self.assertEqual(done.returncode, 0, self.transcript)
            return harness.shown(directory)

    def compare(self, *flags):
        ours_to_choose = set(OURS_TO_CHOOSE)
        if importlib.metadata.version("torch").startswith("2.4."):  # in this version rank 0 serves the store
            ours_to_choose.add("TORCHELASTIC_USE_AGENT_STORE")
        theirs = self.given((sys.executable, TORCHRUN), *flags)
        ours = self.given((harness.DDPRUN,), *flags)
        self.assertEqual(sorted(ours), sorted(theirs))
        for rank in theirs:
            for key in ("argv", "name", "own_session", "executable"):
                self.assertEqual(ours[rank][key], theirs[rank][key], key)
            their_env, our_env = theirs[rank]["environment"], ours[rank]["environment"]
            for name in sorted(set(their_env) - NOT_THE_LAUNCHERS):
                self.assertIn(name, our_env, f"rank {rank}: torchrun sets {name}={their_env[name]}")
                if name not in ours_to_choose:
                    self.assertEqual(our_env[name], their_env[name], f"rank {rank}: {name}")
            added = set(our_env) - set(their_env) - NOT_THE_LAUNCHERS - OF_LATER_VERSIONS
            self.assertEqual({n for n in added if not n.startswith("DDPRUN_")}, set())

    def test_two_workers(self):
        self.compare("--standalone", "--nproc_per_node=2")

    def test_one_worker_keeps_its_threads(self):
        self.compare("--standalone", "--nproc-per-node=1", "--max-restarts=3")

    def test_role_and_restarts(self):
        self.compare("--standalone", "--nproc_per_node", "2", "--max_restarts", "1", "--role", "trainer")


if __name__ == "__main__":
    if not os.path.exists(TORCHRUN):
        skips.skip_all(f"no torchrun beside {sys.executable}")
    harness.main()
