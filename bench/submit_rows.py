# SPDX-License-Identifier: Apache-2.0
"""The row about `ddprunctl submit --to slurm`: its time beside the sbatch that it runs."""
import os
import shutil
import subprocess
import tempfile
import time

import measure
from measure import program
from row import OURS, Goal, Row

JOB = """name = "digits"
command = ["train", "--epochs=5"]
workers_per_node = 2
[to.slurm]
options = ["--hold"]
"""


class Cluster:
    """A Slurm of one node (tests/support/slurm.py). It is started at its first use and runs until the end."""

    def __init__(self):
        self._hosts = self.directory = self._slurm = None

    def ready(self):
        import netns
        import slurm
        if self._slurm:
            return self
        reason = slurm.why_not()
        if reason:
            raise measure.Missing(reason)
        try:
            self._hosts = netns.Hosts(1)
        except netns.Unavailable as unavailable:
            raise measure.Missing(str(unavailable)) from None
        self.directory = tempfile.mkdtemp(prefix="ddprun-bench-")
        self._slurm = slurm.Slurm(self._hosts, self.directory)
        self._slurm.environment["XDG_STATE_HOME"] = self.directory
        if not self._slurm.wait_until_idle():
            raise measure.Missing("Slurm did not come up on this machine")
        with open(os.path.join(self.directory, "job.toml"), "w") as f:
            f.write(JOB)
        return self

    def milliseconds(self, argv, text=None):
        begin = time.perf_counter()
        done = self._hosts[0].run(argv, env=self._slurm.environment, cwd=self.directory, input=text, text=True,
                                  timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        took = (time.perf_counter() - begin) * 1e3
        measure.check(argv, done.returncode, done.stdout)
        return took

    def close(self):
        if self._hosts:
            self._hosts.close()
        if self.directory:
            shutil.rmtree(self.directory, ignore_errors=True)
        self.__init__()


CLUSTER = Cluster()


def sbatch_alone():
    return CLUSTER.ready().milliseconds(["sbatch", "--parsable", "--hold"], "#!/bin/sh\ntrue\n")


def ours():
    both = CLUSTER.ready().milliseconds([program("ddprunctl"), "submit", "job.toml"])
    return {"ms": both, "over sbatch ms": both - sbatch_alone()}


def rows():
    import atexit
    atexit.register(CLUSTER.close)
    return [Row("submit", "`ddprunctl submit --to slurm`, until the job has its id",
                {OURS: ours, "sbatch": lambda: {"ms": sbatch_alone()}}, [Goal("over sbatch ms", 100)], repeats=10,
                note="a real Slurm of one node; ours checks the job's flags, runs sbatch and "
                     "leaves its record")]
