#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a journal with a row of every kind, by a ddprund that is killed. Each new format of the journal needs one,
for upgrade_test.py, beside the earlier ones.

    unshare --uts tests/rendezvous/daemon/make_golden_journal.py PATH
"""
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import unittest

from rounds_case import harness, wait_until
from store_client import CLIENT

AGENT = os.path.join(harness.BIN, "ddprun-agent")
SETS = CLIENT.partition("kind, _, last")[0] + """
set(b"/kept", b"of the first round" if os.environ["DDPRUN_ROUND"] == "1" else b"kept value")
add(b"/here", 1)
if os.environ["DDPRUN_ROUND"] == "1": sys.exit(9)
print("set", flush=True)
store.recv(1)
"""


class Golden(harness.Case):
    path = None

    def test_make(self):
        socket.sethostname("node1")
        with tempfile.TemporaryDirectory(prefix="ddprund-", dir="/tmp") as place:
            os.chdir(place)
            self.make(f"{place}/state")

    def make(self, state):
        daemon, endpoint = self.ddprund(f"--state-dir={state}")
        at = f"--rdzv-endpoint={endpoint}"
        self.assertEqual(self.ddprun(at, "--rdzv-id=succeeded", "--rdzv-conf=is_host=0", "true").returncode, 0)
        done = self.ddprun(at, "--rdzv-id=failed", "--rdzv-conf=is_host=0", "sh", "-c", "exit 3")
        self.assertEqual(done.returncode, 3)
        nodes = [self.start(at, "--rdzv-id=running", "--nnodes=2", "--store=proxy", "--max-restarts=1",
                            "/usr/bin/python3", "-c", SETS) for _ in range(2)]
        for node in nodes:
            self.assertIn("set", node.stdout.readline())
        agent = self.start(at, "--name=n1", "--slots=1", f"--log-dir={state}", program=AGENT)
        self.await_line(agent, "connected to")
        plain = {"env": {"PATH": "/usr/bin:/bin", "HOME": "/", "USER": "root"}, "stdin": subprocess.DEVNULL}
        for command in ("sleep", "600"), ("echo", "it ran"):
            job = subprocess.Popen([harness.DDPRUN, "--standing-agents", at, "--nnodes=1", *command],
                                   stderr=subprocess.PIPE, text=True, cwd="/", **plain)
            self.addCleanup(job.stderr.close)
            self.addCleanup(job.wait)
            self.addCleanup(job.kill)
            self.await_line(job, "gang ")
        def phases():
            return self.ddprunctl("jobs", "--to", "nodes", "--json", at).stdout
        wait_until(lambda: '"running"' in phases() and '"queued"' in phases(), "a gang runs and one waits")
        daemon.kill()  # the journal now has the rows that the page shows
        daemon.wait()
        journal = sqlite3.connect(f"{state}/journal.db")
        journal.execute("UPDATE clock SET boot = 'of another machine'")  # as for its later readers, on other machines
        journal.commit()
        journal.execute("PRAGMA journal_mode = DELETE")
        journal.execute("VACUUM")
        journal.close()
        os.replace(f"{state}/journal.db", self.path)


if __name__ == "__main__":
    Golden.path = os.path.abspath(sys.argv.pop())
    unittest.main()
