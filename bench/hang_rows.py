# SPDX-License-Identifier: Apache-2.0
"""The row about ranks that stop making progress. No peer is measured: torchrun waits for the
collective's time-out, 10 minutes with NCCL."""
import os
import subprocess
import tempfile
import threading
import time

import measure
from measure import program
from row import OURS, Goal, Row

PORT = 29400


def hang_seconds():
    """Measures the time from a rank's stop until each node has reported it: 2 hosts × 2 ranks, steps of 50 ms.
    Then the rank goes on, and the job succeeds: a pause is reported, but ends nothing."""
    import netns
    with netns.Hosts(2) as hosts, tempfile.TemporaryDirectory() as directory:
        running = []
        for host in hosts:
            argv = [program("ddprun"), "--nnodes=2", "--nproc_per_node=2",
                    f"--rdzv-endpoint={hosts[0].address}:{PORT}", "--rdzv-id=bench",
                    program("hang_worker"), directory, "read", "2"]
            running.append((argv, host.popen(argv, env=measure.environment(), stdin=subprocess.DEVNULL,
                                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)))
        told = []

        def listen(process):
            for line in process.stderr:
                if "hang: " in line and "is over" not in line:
                    told.append(time.monotonic())
                    if len(told) == 2:  # the rank goes on once this file exists
                        with open(os.path.join(directory, "part-07"), "wb") as file:
                            file.write(b"x")

        readers = [threading.Thread(target=listen, args=(process,)) for _, process in running]
        for reader in readers:
            reader.start()
        for argv, process in running:
            measure.check(argv, process.wait(timeout=120))
        for reader in readers:
            reader.join()
        with open(os.path.join(directory, "stopped")) as f:
            stopped = int(f.read()) / 1e9
        if len(told) != 2:
            raise RuntimeError(f"{len(told)} of 2 nodes told the hang")
        return {"s": max(told) - stopped}


def rows():
    return [Row("hang", "one rank stops making progress at 50 ms steps → told on every node, 2 hosts × 2",
                {OURS: hang_seconds}, [Goal("s", 10)], repeats=3,
                note="default flags; the limit is learnt (5 s at this step time); told with the "
                     "rank's name, its file and its stack. NCCL's own time-out is 10 min")]
