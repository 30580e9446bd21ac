# SPDX-License-Identifier: Apache-2.0
"""The row about the cost of a ddprund while no job runs. It has no peer: torchrun has no standing service."""
import os
import socket
import subprocess
import tempfile
import time

from measure import environment, program
from row import OURS, Goal, Row

SECONDS = 20
WARM_UP_SECONDS = 2
# Sets WATCHDOG_PID like systemd: the variable has the process' own pid, known only once the process exists.
FOR_ITSELF = 'WATCHDOG_PID=$$; export WATCHDOG_PID; exec "$0" "$@"'


def cpu_seconds(pid):
    """Returns the CPU time of all threads of the process, in seconds."""
    nanoseconds = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat") as f:
            nanoseconds += int(f.read().split()[0])
    return nanoseconds / 1e9


def resident_megabytes(pid):
    with open(f"/proc/{pid}/status") as f:
        kibibytes, = (int(line.split()[1]) for line in f if line.startswith("VmRSS:"))
    return kibibytes * 1024 / 1e6


def idle():
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        path = os.path.join(directory, "notify")
        manager.bind(path)
        manager.settimeout(30)
        argv = [program("ddprund"), "--listen=127.0.0.1:0", f"--state-dir={directory}/state"]
        env = {**environment(), "NOTIFY_SOCKET": path, "WATCHDOG_USEC": "30000000"}
        daemon = subprocess.Popen(["sh", "-c", FOR_ITSELF, *argv], env=env, stderr=subprocess.DEVNULL)
        try:
            if b"READY=1" not in manager.recv(65536):
                raise RuntimeError("ddprund did not say READY=1 first")
            time.sleep(WARM_UP_SECONDS)
            before = cpu_seconds(daemon.pid)
            time.sleep(SECONDS)
            used = cpu_seconds(daemon.pid) - before
            return {"resident MB": resident_megabytes(daemon.pid), "CPU %": 100 * used / SECONDS}
        finally:
            daemon.terminate()
            daemon.wait(30)


def rows():
    return [Row("idle", "`ddprund` with a journal and a watchdog, no job", {OURS: idle},
                [Goal("resident MB", 15), Goal("CPU %", 0.1)], repeats=3,
                note=f"{SECONDS} s of a daemon that has just begun, as its unit starts it")]
