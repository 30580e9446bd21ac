# SPDX-License-Identifier: Apache-2.0
"""Runs jobs of steady_worker on several hosts, causes faults, and checks the conditions that must hold afterwards.

After each fault the job goes on, or it ends on every node with one named cause and a documented exit code. There are
never two rank 0s. No process, listening port, shared memory or temporary file stays. Each wait has its deadline. The
seed of a run is printed. DDPRUN_TEST_SEED=N repeats its choices, and its moments approximately.
"""
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../launcher"))
import harness  # noqa: E402
import netns  # noqa: E402
import seeds  # noqa: E402
from harness import wait_until  # noqa: E402, F401

PORT = 29400
WORKER = os.path.join(harness.BIN, "steady_worker")
# Sanitizers and a loaded machine are slower. A longer bound still catches a missing event.
PATIENCE = 15


class FaultCase(harness.Case):
    num_hosts = 3
    faulty_cables = False

    def setUp(self):
        self.seed = seeds.seed()
        self.random = random.Random(self.seed)
        self.count = itertools.count()
        self.hosts = netns.Hosts(self.num_hosts, faulty_cables=self.faulty_cables)
        self.addCleanup(self.hosts.close)
        self.begin_job()

    def begin_job(self):
        """Makes a new directory for the workers of a job, and for each host's temporary files."""
        self.launched = []
        self.meet = self.scratch()
        for name in ("rounds", *(f"tmp{host.index}" for host in self.hosts)):
            os.mkdir(os.path.join(self.meet, name))

    # ---- the job ----

    def daemon(self, index, *flags):
        """Starts ddprund on a host. check_clean() ends it, and checks its exit code."""
        host = self.hosts[index]
        process = self.launch(host, [harness.DDPRUND, "--insecure", f"--listen={host.address}:{PORT}", *flags])
        wait_until(lambda: PORT in host.listening(), "ddprund listens", PATIENCE)
        return process

    def agent(self, index, *flags, rendezvous=0, program=None, **environment):
        """Starts ddprun on a host, with its output in a file, because nobody reads it while ddprun runs."""
        endpoint = f"--rdzv-endpoint={self.hosts[rendezvous].address}:{PORT}"
        return self.launch(self.hosts[index], [harness.DDPRUN, endpoint, "--rdzv-id=job",
                                               "--shutdown-timeout=5", *flags,
                                               *(program or [WORKER, self.meet])], **environment)

    def launch(self, host, argv, **environment):
        output = os.path.join(self.meet, f"output{next(self.count)}")
        with open(output, "w") as file:
            process = host.popen(
                argv, env=harness.environment(TMPDIR=self.tmp(host.index), **environment),
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
        process.output = output
        self.launched.append(process)
        self.addCleanup(lambda: process.poll() is None and (process.kill(), process.wait()))
        return process

    def tmp(self, index):
        return os.path.join(self.meet, f"tmp{index}")

    def rounds(self):
        """Returns round → world size, for the rounds whose workers did a step."""
        found = {}
        for name in os.listdir(os.path.join(self.meet, "rounds")):
            if name.isdigit():
                with open(os.path.join(self.meet, "rounds", name)) as f:
                    found[int(name)] = int(f.read())
        return found

    def last_round(self):
        return max(self.rounds(), default=0)

    def await_round(self, after=0, world=None, seconds=PATIENCE):
        """Waits until workers of a round after `after` do steps, with that world size. Returns the seconds it took."""
        begin = time.monotonic()
        try:
            wait_until(lambda: any(n > after and world in (None, size) for n, size in self.rounds().items()),
                       f"a round after {after} with world size {world or 'any'}", seconds)
        except AssertionError as late:
            self.fail(f"seed {self.seed}: {late}; there were {self.rounds()}\n{self.all_said()}")
        return time.monotonic() - begin

    def all_said(self):
        return "\n---\n".join(self.output_of(each) for each in self.launched)

    def finish_job(self):
        open(os.path.join(self.meet, "finish"), "w").close()

    # ---- its processes ----

    def named(self, index, name):
        """Returns the pids of the processes with that name on a host."""
        found = []
        for pid in self.hosts[index].pids():
            try:
                with open(f"/proc/{pid}/comm") as f:
                    if f.read().strip() == name:
                        found.append(pid)
            except OSError:
                pass
        return sorted(found)

    @staticmethod
    def kill(pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    # ---- conditions that must hold afterwards ----

    def check_end(self, process, codes, cause=None, seconds=PATIENCE):
        """Checks that the agent ends in time with one of these codes. A failure has one report, matching `cause`."""
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = f"none within {seconds} s"
        output = self.output_of(process)
        text = f"seed {self.seed}: exit code {code}\n{output}"
        self.assertIn(code, codes, text)
        if code > 0:
            reports = re.findall(r"^ddprun exits with (\d+)", output, re.M)
            if reports:
                self.assertEqual(reports, [str(code)], text)
            else:
                self.assertEqual(len(re.findall(r"^ddprun: ", output, re.M)), 1, text)
        if cause:
            self.assertRegex(output, cause, text)
        return output

    @staticmethod
    def output_of(process):
        with open(process.output, errors="replace") as file:
            return file.read()

    def check_one_rank_0(self):
        path = os.path.join(self.meet, "violations")
        if os.path.exists(path):
            with open(path) as f:
                self.fail(f"seed {self.seed}: {f.read()}")

    def check_clean(self, daemon=None):
        """Checks that nothing is left on any host."""
        if daemon:
            daemon.terminate()
            self.assertEqual(daemon.wait(timeout=PATIENCE), 0)
        self.check_one_rank_0()
        for host in self.hosts:
            wait_until(lambda host=host: not host.pids(), f"seed {self.seed}: {self.processes(host)}", 5)
            self.assertEqual(host.listening(), set(), f"seed {self.seed}")
            self.assertEqual(host.shared_memory(), [], f"seed {self.seed}")
            # ThreadSanitizer's runtime has files of its own in this directory while it starts.
            left = [name for name in os.listdir(self.tmp(host.index)) if not name.startswith("tsan.")]
            self.assertEqual(left, [], f"seed {self.seed}")

    @staticmethod
    def processes(host):
        names = []
        for pid in host.pids():
            try:
                with open(f"/proc/{pid}/cmdline") as f:
                    names.append(f"{pid}: {f.read()}")
            except OSError:
                pass
        return f"no process is left on {host.name}: {names}"


def main(**hosts_options):
    netns.hosts_or_skip(1, **hosts_options).close()
    harness.main()
