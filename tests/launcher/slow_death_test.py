#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A killed worker that doesn't die, as one that hangs in a driver. It is in a frozen cgroup (version 1)."""
import os
import time

import harness

# Rank 1 says its pid and waits; rank 0 fails when it is told to.
WORKER = ('if [ $RANK = 1 ]; then echo $$ >"$MEET/pid.new"; mv "$MEET/pid.new" "$MEET/pid"; exec sleep 600; fi; '
          'until [ -e "$MEET/fail" ]; do sleep 0.02; done; exit 9')


class SlowDeath(harness.Case):
    def freeze(self, pid):
        """Keeps a process from its end until it is thawed. Returns the freezer."""
        freezer = f"/sys/fs/cgroup/freezer/ddprun-test-{os.getpid()}"
        try:
            os.mkdir(freezer)
        except OSError as why:
            self.skipTest(f"no freezer (cgroup version 1) can be made here: {why}")
        self.addCleanup(self.thaw, freezer)
        for file, text in (("cgroup.procs", str(pid)), ("freezer.state", "FROZEN")):
            self.write(freezer, file, text)
        return freezer

    def thaw(self, freezer):
        if not os.path.exists(freezer):
            return
        self.write(freezer, "freezer.state", "THAWED")
        harness.wait_until(lambda: not self.read(f"{freezer}/cgroup.procs"), "what was frozen has died")
        os.rmdir(freezer)

    @staticmethod
    def read(path):
        with open(path) as file:
            return file.read()

    def test_a_worker_that_never_dies_is_waited_for_a_minute_and_named(self):
        meet = self.scratch()
        job = self.start("--standalone", "--nproc-per-node=2", "--max-restarts=1", "--shutdown-timeout=1", "--",
                         "/bin/sh", "-c", WORKER, MEET=meet)
        harness.wait_until(lambda: os.path.exists(f"{meet}/pid"), "rank 1 runs")
        pid = int(self.read(f"{meet}/pid"))
        harness.wait_until(lambda: self.read(f"/proc/{pid}/cmdline").startswith("sleep"), "it has become sleep")
        freezer = self.freeze(pid)
        self.write(meet, "fail", "")
        begun = time.monotonic()
        job.wait(110)
        self.assertGreater(time.monotonic() - begun, 60)
        self.thaw(freezer)  # its warden, which has the job's stderr, ends with it
        done = self.finish(job, code=75)
        self.assertRegex(done.stderr, rf"is excluded: processes of an earlier round can't be killed: pid {pid} \(sleep 600")


if __name__ == "__main__":
    harness.main()
