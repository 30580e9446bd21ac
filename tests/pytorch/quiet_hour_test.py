#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that there is no false alarm of a hang. A first compilation takes 55 s, checkpoints take 40 s,
and a debugger holds a rank for 90 s.

    quiet_hour_test.py [MINUTES]    for scripts/soak.sh; the default is an hour
"""
import contextlib
import os
import re
import subprocess
import sys
import time
import unittest

import harness
import frozen

MINUTES = float(sys.argv.pop()) if sys.argv[1:] else 60
HELD, BETWEEN = 90, 300  # seconds


class QuietHour(harness.Job):
    def hold(self, pid):
        """Holds all threads of the process, as a debugger does."""
        with contextlib.ExitStack() as debugger:
            for thread in os.listdir(f"/proc/{pid}/task"):
                debugger.enter_context(frozen.thread(int(thread)))
            time.sleep(HELD)  # the rank must stand still for this long

    def test_nobody_speaks_of_a_hang(self):
        process = subprocess.Popen([harness.DDPRUN, "--standalone", "--nproc_per_node=2", harness.job("quiet_hour"),
                                    str(MINUTES * 60)], env=harness.environment(), text=True, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        end = time.monotonic() + MINUTES * 60
        pids = dict(re.search(r"rank (\d) is process (\d+)", process.stdout.readline()).groups() for _ in range(2))
        holds = 0
        while time.monotonic() + HELD < end:
            self.hold(pids[str(holds % 2)])
            holds += 1
            time.sleep(min(BETWEEN, max(0, end - time.monotonic())))
        said, told = process.communicate(timeout=300)
        print(said, f"held {holds} times", flush=True)
        self.assertEqual(process.returncode, 0, told)
        self.assertEqual(len(re.findall(r"is done: [1-9]\d* checkpoints", said)), 2, said)
        self.assertNotIn("hang", told)
        self.assertNotIn("stalled", told)


if __name__ == "__main__":
    harness.require_torch()
    harness.runner.main()
