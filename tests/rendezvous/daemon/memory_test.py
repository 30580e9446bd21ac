#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that ddprund frees its memory. Jobs of many nodes, small jobs with stores behind proxies, and keys on its own
port come and go. DDPRUN_MEMORY_SECONDS=N: the seconds that each of the two tests runs (10)."""
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "launcher"))
import harness  # noqa: E402
import skips  # noqa: E402
from harness import wait_until  # noqa: E402

SECONDS = float(os.environ.get("DDPRUN_MEMORY_SECONDS", "10"))
WARM_UP = 3  # rounds of load before the first measurement, so that memory kept for reuse counts in it
STORE_LOAD = os.path.join(harness.BIN, "store_load")
FLEET_LOAD = os.path.join(harness.BIN, "fleet_load")
MOST = 1.05
SLACK = 256 << 10  # bytes, for pages that differ from run to run


class Memory(harness.Case):
    def check_returns(self, *flags):
        daemon, endpoint = self.ddprund("--keep-finished=0", *flags)
        port = endpoint.rpartition(":")[2]

        def load():
            emulated = self.start("--agents=200", "--failures=1", "--losses=1", "--keep-alive=4",
                                  f"--rdzv-endpoint={endpoint}", program=FLEET_LOAD)
            small = [self.ddprun(f"--rdzv-endpoint={endpoint}", "--store=proxy", f"--rdzv-id=j{i}", "sh", "-c",
                                 f"exec {STORE_LOAD} $MASTER_PORT $$ set 16 0.2") for i in range(3)]
            plain = self.finish(self.start(port, str(daemon.pid), "set", "16", "0.2", program=STORE_LOAD))
            emulated = self.finish(emulated, 120)
            for done in (*small, plain, emulated):
                self.assertEqual(done.returncode, 0, done.text)

        for _ in range(WARM_UP):
            load()
        before = self.resident(daemon)
        end, rounds = time.monotonic() + SECONDS, 0
        while time.monotonic() < end:
            load()
            rounds += 1
        limit = before * MOST + SLACK
        try:
            wait_until(lambda: self.resident(daemon) <= limit, "its memory is back", 15)
        except AssertionError:
            self.fail(f"{before} bytes before, {self.resident(daemon)} after {rounds} rounds of load")
        print(f"{before >> 10} KiB before, {self.resident(daemon) >> 10} KiB after {rounds} rounds", end=" ",
              file=sys.stderr)

    @staticmethod
    def resident(process):
        with open(f"/proc/{process.pid}/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def test_it_returns(self):
        self.check_returns()

    def test_it_returns_with_a_journal(self):
        self.check_returns(f"--state-dir={self.scratch()}/state")


if __name__ == "__main__":
    if os.environ.get("DDPRUN_SANITIZE") or not os.path.exists(STORE_LOAD):
        skips.skip_all(f"for a build without sanitizers, with {STORE_LOAD}")
    harness.main()
