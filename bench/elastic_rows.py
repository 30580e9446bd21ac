# SPDX-License-Identifier: Apache-2.0
"""The rows about nodes: a job on two hosts comes together, loses a node, loses a cable."""
import glob
import os
import signal
import subprocess
import tempfile
import time

import measure
from measure import program, torchrun
from row import OURS, Goal, Row

KEEP_ALIVE = 2.0  # seconds, for the row about a cut link
UNNOTICED = 45.0  # seconds after which a loss counts as not noticed
PORT = 29400


class Job:
    """Runs a launcher of elastic_workers on each of two hosts (network namespaces). A third host is idle."""

    def __init__(self, argv_of, mode):
        self._argv_of, self._mode = argv_of, mode

    def __enter__(self):
        import netns
        self._directory = tempfile.TemporaryDirectory()
        self.hosts = netns.Hosts(3)
        self.begun = time.monotonic_ns()
        self.launchers = [self.launch(0), self.launch(1)]
        return self

    def launch(self, index):
        host = self.hosts[index]
        argv = self._argv_of(host, self.hosts) + [program("elastic_worker"), self._directory.name,
                                                  self._mode]
        return host.popen(argv, env=measure.environment(), stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __exit__(self, *_):
        self.hosts.close()
        self._directory.cleanup()

    def notes(self, pattern):
        found = []
        for path in glob.glob(os.path.join(self._directory.name, pattern)):
            with open(path) as f:
                found.append(int(f.read()))
        return found

    def await_notes(self, pattern, count, what, limit=60.0):
        """Returns the notes once there are `count` of them. Raises Missing after `limit` seconds."""
        deadline = time.monotonic() + limit
        while len(self.notes(pattern)) < count:
            if time.monotonic() > deadline:
                raise measure.Missing(f"{what}: not within {limit:.0f} s")
            time.sleep(0.002)
        return self.notes(pattern)

    def settle(self, count):
        """Waits until `count` workers run, and half a second more."""
        self.await_notes("0.*", count, "the first round")
        time.sleep(0.5)


def ours(*flags):
    def argv(_, hosts):
        return [program("ddprun"), *flags, "--rdzv-id=bench", f"--rdzv-endpoint={hosts[0].address}:{PORT}"]
    return argv


def theirs(*flags):
    def argv(host, hosts):
        return torchrun() + [*flags, "--no-python", "--rdzv-backend=c10d", "--rdzv-id=bench",
                             f"--rdzv-endpoint={hosts[0].address}:{PORT}",
                             f"--rdzv-conf=is_host={1 if host.index == 0 else 0},last_call_timeout=1",
                             f"--local-addr={host.address}"]
    return argv


def start_ms(argv_of):
    with Job(argv_of, "exit") as job:
        last = max(job.await_notes("0.*", 4, "all workers run"))
        for launcher in job.launchers:
            measure.check(["launcher"], launcher.wait(timeout=120))
        return {"ms": (last - job.begun) / 1e6}


def agent_killed_ms(argv_of, num_running_again, has_spare):
    with Job(argv_of, "stay") as job:
        job.settle(4)
        if has_spare:
            job.launch(2)
            time.sleep(1)  # only its terminal shows that it is ready
        killed = time.monotonic_ns()
        job.launchers[1].send_signal(signal.SIGKILL)
        last = max(job.await_notes("1.*", num_running_again, "running again", UNNOTICED))
        return {"ms": (last - killed) / 1e6}


def link_cut_ms(argv_of):
    with Job(argv_of, "stay") as job:
        job.settle(2)
        cut = time.monotonic_ns()
        job.hosts[1].cut()
        # The cut-off host stops its own worker, too, so both workers note it.
        last = max(job.await_notes("stopped.0.*", 2, "every worker is told to stop", UNNOTICED))
        return {"ms": (last - cut) / 1e6}


def rows():
    two = ("--nnodes=2", "--nproc_per_node=2")
    one_or_two = ("--nnodes=1:2", "--nproc_per_node=2", "--max-restarts=3")
    single = ("--nnodes=1:2", "--nproc_per_node=1", "--max-restarts=3")
    hosts = "hosts are network namespaces; C workers; 'running' is the last one's first instruction"
    return [
        Row("hosts", "2 hosts × 2 workers, both started at once → all workers running",
            {OURS: lambda: start_ms(ours(*two)), "torchrun": lambda: start_ms(theirs(*two))},
            [Goal("ms", 60)], note=f"from the start of the first launcher; {hosts}"),
        Row("node-loss", "an agent is killed → the survivors run in a new round",
            {OURS: lambda: agent_killed_ms(ours(*two, "--spares=1"), 4, has_spare=True),
             "torchrun": lambda: agent_killed_ms(theirs(*one_or_two), 2, has_spare=False)},
            [Goal("ms", 300)], repeats=3,
            note="kill -9 of the second host's launcher. Ours: a spare takes its place; torchrun's "
                 "survivors would go on alone (`--nnodes=1:2`); hosts as in `hosts`"),
        Row("link-cut", "the link to a host is cut → every worker is told to stop",
            {OURS: lambda: link_cut_ms(ours(
                *single, f"--rdzv-conf=keep_alive_timeout={KEEP_ALIVE},last_call_timeout=1")),
             "torchrun": lambda: link_cut_ms(theirs(*single))},
            [Goal("ms", KEEP_ALIVE * 1e3 + 200)], repeats=3,
            note=f"keep-alive time {KEEP_ALIVE:.0f} s; on the host that is cut off, too"),
    ]
