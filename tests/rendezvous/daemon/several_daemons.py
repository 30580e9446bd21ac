# SPDX-License-Identifier: Apache-2.0
"""What tests of several ddprunds of which one leads have in common: daemons that are killed, paused
and started again, and a job whose workers say in files when they run."""
import glob
import importlib.util
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request

from rounds_case import RoundsCase, harness, wait_until

COUNTS = """
import os, torch.distributed as d
store = d.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
for i in range(200):
    store.add("count", 1)
    if i == 50: open(os.environ["MEET"] + "/half" + os.environ["RANK"], "w").close()
if store.add("done", 1) == 2:
    print("count", store.add("count", 0), flush=True)
    store.set("all", "1")
store.wait(["all"])
"""
LEASE = 3
# Beyond it, on a machine that does other things, too; benchmarks have the figures.
PATIENCE = 15 if os.environ.get("DDPRUN_SANITIZE") else 2.5


class Member:
    """A ddprund that can lead; what it says is in `errors`. Its flags are the case's `flags_of` it, and
    `flags`; `prefix` starts it."""

    def __init__(self, case, name, *flags, port=None, prefix=()):
        self.case, self.name, self.flags, self.prefix = case, name, flags, prefix
        self.port = port or harness.free_port()
        self.directory = case.scratch()
        self.errors = os.path.join(self.directory, name)
        self.process = None
        case.addCleanup(lambda: case.has_failed() and print(f"\n-- {name}\n{self.log()}", file=sys.stderr))
        self.start()

    def start(self):
        with open(self.errors, "ab") as errors:
            self.process = subprocess.Popen(
                [*self.prefix, harness.DDPRUND, f"--listen=127.0.0.1:{self.port}", *self.case.flags_of(self),
                 *self.flags],
                env=harness.environment(), stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        process = self.process
        self.case.addCleanup(lambda: process.poll() is None and (
            process.send_signal(signal.SIGCONT), process.kill(), process.wait()))

    def log(self):
        with open(self.errors) as file:
            return file.read()

    def get(self, path):
        """The page, or None where it does not answer, or stands by."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2) as answer:
                return json.load(answer)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def role(self):
        return (self.get("/v1/status") or {}).get("role")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)


class SeveralDaemons(RoundsCase):
    ROUND_LIMIT = 40

    def agents(self, group, *flags, count=2, failing=0):
        endpoints = ",".join(f"127.0.0.1:{each.port}" for each in group)
        return self.agents_at(endpoints, *flags, count=count, failing=failing)

    def wait_for_agents(self, leader, seconds=20):
        def both():
            jobs = (leader.get("/v1/jobs") or {}).get("jobs")
            return jobs and sum(node["connected"] for node in jobs[0]["nodes"]) == 2
        wait_until(both, f"both agents are at {leader.name}", seconds)

    def check_end(self, agents, pids):
        """All went well, in round 1 alone."""
        self.go()
        for agent in agents:
            done = self.finish(agent)
            self.assertEqual(done.returncode, 0, done.text)
        self.assertEqual(self.pids(1), pids)
        self.assertEqual(self.pids(2), {})

    def counting_agents(self, group):
        """Two nodes whose workers count to 400 together in a store behind proxies; when they are under
        way."""
        if importlib.util.find_spec("torch") is None:
            self.skipTest("no PyTorch here: scripts/setup.sh full")
        path = self.write(self.scratch(), "counts.py", COUNTS)
        endpoints = ",".join(f"127.0.0.1:{each.port}" for each in group)
        agents = [self.start(f"--rdzv-endpoint={endpoints}", "--nnodes=2", "--store=proxy", "--rdzv-id=job",
                             "--no-python", sys.executable, path, MEET=self.meet) for _ in range(2)]
        wait_until(lambda: len(glob.glob(self.meet + "/half*")) > 0, "it counts", 60)
        return agents

    def check_count(self, agents):
        done = [self.finish(agent) for agent in agents]
        for each in done:
            self.assertEqual(each.returncode, 0, each.text)
        self.assertIn("count 400", "".join(each.stdout for each in done))
