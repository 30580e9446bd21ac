# SPDX-License-Identifier: Apache-2.0
"""The row about starting all nodes from one shell: `ddprun --hosts`, and as many `ssh true` at once."""
import os
import subprocess
import tempfile
import time

import measure
from measure import program
from row import OURS, Goal, Row

NUM_NODES = 64


class Cluster:
    """One sshd on loopback that has 64 names. It is started at its first use and runs until the end."""

    def __init__(self):
        self._keys = None
        self._server = None

    def ssh(self):
        """Returns the words of an ssh command that knows the hosts n01 … n64."""
        import ports
        import sshd
        if not self._server:
            try:
                self._keys = sshd.Keys()
                port = ports.free_port()
                self._keys.client_config(f"Host n*\n  HostName 127.0.0.1\n  Port {port}\n")
                # An own home folder, so that the start-up files of the user's shell cost neither side anything.
                self._server = sshd.Server(self._keys, "127.0.0.1", port, more=f"SetEnv HOME={self._keys.directory}")
            except sshd.Unavailable as reason:
                raise measure.Missing(str(reason)) from None
        return self._keys.ssh_words()

    def close(self):
        if self._server:
            self._server.close()
        if self._keys:
            self._keys.close()
        self._server = self._keys = None


CLUSTER = Cluster()


def names():
    return [f"n{i:02}" for i in range(1, NUM_NODES + 1)]


def ours():
    ssh = " ".join(CLUSTER.ssh())
    with tempfile.TemporaryDirectory() as directory:
        argv = [program("ddprun"), f"--hosts=n[01-{NUM_NODES}]:1", f"--ssh={ssh}", program("start_worker"), directory]
        begin = time.monotonic_ns()
        whole = measure.wall_seconds(argv)
        born = []
        for rank in range(NUM_NODES):
            with open(os.path.join(directory, str(rank))) as f:
                born.append(int(f.read()))
        return {"ms": (max(born) - begin) / 1e6, "whole job ms": whole * 1e3}


def ssh_true():
    ssh = CLUSTER.ssh()
    environment = measure.environment()
    begin = time.monotonic_ns()
    running = [subprocess.Popen([*ssh, "-T", "-o", "BatchMode=yes", name, "true"], env=environment,
                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
               for name in names()]
    for process in running:
        error = process.communicate(timeout=120)[1]
        measure.check(process.args, process.returncode, error)
    return {"ms": (time.monotonic_ns() - begin) / 1e6}


def rows():
    import atexit
    atexit.register(CLUSTER.close)
    return [Row(
        "ssh", f"{NUM_NODES} nodes over ssh, start → last worker running",
        {OURS: ours, f"{NUM_NODES} × ssh true": ssh_true},
        [Goal("ms", 1.3, f"{NUM_NODES} × ssh true")],
        note="One sshd on loopback. Ours has one worker a node and ends at the last worker's "
             "first instruction. The other side starts all at once and ends with the last one")]
