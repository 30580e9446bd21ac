#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests fleet_load, which runs a job of hundreds of nodes with the shipped ddprund. Its seed selects nodes that fail,
vanish and are cut off. Also tests bad input, and a missing rendezvous."""
import json
import os
import re
import socket
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "support"))
import runner  # noqa: E402

BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(HERE, "../../../build/dev/bin"))


class FleetLoad(unittest.TestCase):
    def load(self, *flags):
        return subprocess.run([os.path.join(BIN, "fleet_load"), *flags], timeout=150, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def times(self, *flags):
        done = self.load("--json", *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_hundreds_of_nodes_that_fail_and_vanish(self):
        for seed in range(1 if os.environ.get("DDPRUN_SANITIZE") else 3):
            with self.subTest(seed=seed):
                times = self.times("--agents=200", "--failures=3", "--losses=3", f"--seed={seed}",
                                   "--spawn-time=0.02")
                for event in ("failure", "loss"):
                    self.assertEqual(len(times[f"{event}_told_ms"]), 3)
                    for told, running in zip(times[f"{event}_told_ms"], times[f"{event}_running_ms"]):
                        self.assertLessEqual(told, running)
                if not os.environ.get("DDPRUN_SANITIZE"):  # a sanitizer needs memory itself
                    self.assertLess(times["daemon_bytes_per_agent"], 60_000)

    def test_the_table_says_what_was_measured(self):
        done = self.load("--agents=20", "--losses=1")
        self.assertEqual(done.returncode, 0, done.stderr)
        for text in ("20 agents × 8 workers", "first join", "a node vanishes", "memory per agent",
                     "every invariant held"):
            self.assertIn(text, done.stdout)

    def test_kills_partitions_and_slow_nodes_in_real_time(self):
        for seed in (1,) if os.environ.get("DDPRUN_SANITIZE") else (1, 2):
            with self.subTest(seed=seed):
                times = self.times("--agents=40", "--kills=5", "--partitions=4", "--slow-nodes=3",
                                   "--duration=4", "--keep-alive=2", f"--seed={seed}")
                self.assertGreater(times["random_faults"], 5)
                self.assertGreater(times["rounds"], 3)
                self.assertTrue(times["restart_ms"])

    def test_bad_values_are_one_line(self):
        for flags, says in ((["--agents=0"], "--agents"), (["--agents=x"], "--agents"),
                            (["--rdzv-endpoint=:"], "--rdzv-endpoint"), (["--nonsense"], "--nonsense"),
                            (["--kills=-1"], "--kills"), (["--partitions=1e9"], "--partitions"),
                            (["--slow-nodes=101"], "--slow-nodes=101: there are 100"),
                            (["--kills=1", "--duration=0"], "--duration=0"),
                            (["--duration=-1"], "--duration"), (["--keep-alive=0"], "--keep-alive"),
                            (["--seed=-1"], "--seed")):
            with self.subTest(flags):
                done = self.load(*flags)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertRegex(done.stderr, r"\Afleet_load: [^\n]*\n\Z")
                self.assertIn(says, done.stderr)

    def test_help_names_every_flag_of_the_page(self):
        shown = self.load("--help").stdout
        page = os.path.join(HERE, "../../../bench/fleet/README.md")
        with open(page, encoding="utf-8") as f:
            table = f.read().split("## Flags")[1].split("## The row")[0]
        flags = set(re.findall(r"`(--[a-z-]+)[ `]", table)) - {"--on-join"}
        self.assertGreater(len(flags), 12)
        for flag in flags:
            self.assertIn(flag + " ", shown)

    def test_nobody_at_the_endpoint(self):
        with socket.socket() as held:  # the port is bound without a listener, so connections are refused
            held.bind(("127.0.0.1", 0))
            done = self.load("--agents=2", f"--rdzv-endpoint=127.0.0.1:{held.getsockname()[1]}",
                                "--time-limit=2")
        self.assertEqual(done.returncode, 69, done.stderr)
        self.assertRegex(done.stderr, r"\Afleet_load: no end within 2 s, while joining[^\n]*\n\Z")


if __name__ == "__main__":
    runner.main()
