# SPDX-License-Identifier: Apache-2.0
"""Helps tests with several ddprunds, of which one leads. Daemons can be killed, paused and started again. The workers
of a job write files when they run."""
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request

from rounds_case import RoundsCase, harness, wait_until
from store_client import CLIENT, check_counts

LEASE = 3
PATIENCE = 15  # seconds; far longer than any event takes


class Member:
    """A ddprund that can lead. Its log goes to `errors`. Its flags are the case's flags_of(member), and `flags`."""

    def __init__(self, case, name, *flags):
        self.case, self.name, self.flags = case, name, flags
        self.port = harness.free_port()
        self.directory = case.scratch()
        self.errors = os.path.join(self.directory, name)
        self.process = None
        case.addCleanup(lambda: case.has_failed() and print(f"\n-- {name}\n{self.log()}", file=sys.stderr))
        self.start()

    def start(self):
        with open(self.errors, "ab") as errors:
            self.process = subprocess.Popen(
                [harness.DDPRUND, f"--listen=127.0.0.1:{self.port}", *self.case.flags_of(self),
                 *self.flags],
                env=harness.environment(), stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        process = self.process
        self.case.addCleanup(lambda: process.poll() is None and (
            process.send_signal(signal.SIGCONT), process.kill(), process.wait()))

    def log(self):
        with open(self.errors) as file:
            return file.read()

    def get(self, path):
        """Returns the page; None: the daemon doesn't answer, or is a standby."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2) as answer:
                return json.load(answer)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def role(self):
        return (self.get("/v1/status") or {}).get("role")

    def readiness(self):
        """Returns the status of /readyz, and its line."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read()

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

    def counting_agents(self, group):
        """Starts two nodes of two workers. Each worker ADDs, APPENDs, COMPARE_SETs, QUEUE_PUSHes and QUEUE_POPs in a
        store behind proxies, until go(). Returns the agents when the requests are under way."""
        endpoints = ",".join(f"127.0.0.1:{each.port}" for each in group)
        agents = [self.start(f"--rdzv-endpoint={endpoints}", "--nnodes=2", "--nproc_per_node=2", "--store=proxy",
                             "--rdzv-id=job", "--no-python", sys.executable, "-c", CLIENT,
                             f"until={self.meet}/go", "all") for _ in range(2)]
        self.wait_for_requests(group[0])
        return agents

    def wait_for_requests(self, leader):
        """Waits until the leader has carried out some of these workers' requests."""
        def bytes_used():  # grows with each APPEND
            return ((leader.get("/v1/status") or {}).get("stores") or {}).get("proxied", {}).get("bytes", 0)
        wait_until(bytes_used, f"workers use the store at {leader.name}", 30)
        before = bytes_used()
        wait_until(lambda: bytes_used() > before, f"workers go on at {leader.name}", 30)

    def check_count(self, agents):
        """Checks that each request of each worker took effect once, in one round."""
        self.go()
        done = [self.finish(agent) for agent in agents]
        for each in done:
            self.assertEqual(each.returncode, 0, each.text)
        text = "".join(each.stdout for each in done)
        self.assertEqual(text.count("begun"), 4, text)
        check_counts(self, text, 4)
