# SPDX-License-Identifier: Apache-2.0
"""The row about ranks that go on in their processes after one rank has died."""
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.request

import measure
from measure import program
from row import OURS, Goal, Row
from survival_rows import ddprund

PEER = "process restart"
RANKS = 3


def job_at(port):
    """Returns the job's state from its rendezvous; None: there is no job yet."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/jobs", timeout=5) as answer:
        jobs = json.load(answer)["jobs"]
    return jobs[0] if jobs else None


def trainers_of(launcher):
    found = []
    for pid in measure.descendants(launcher.pid):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as f:
            if f.read().strip() == "train":
                found.append(pid)
    return sorted(found)


def await_first_step(port, number, launcher):
    """Waits until all ranks of round `number` have done a step. Returns the records of the job's rounds."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and launcher.poll() is None:
        rounds = (job_at(port) or {}).get("rounds", [])
        if len(rounds) >= number and rounds[number - 1]["seconds"]["first_step"] > 0:
            return rounds
        time.sleep(0.005)
    raise measure.Missing(f"the first step of round {number}: not within 60 s")


def next_step_ms(recovery):
    program("train", "configure with LibTorch: scripts/setup.sh minimal")
    with tempfile.TemporaryDirectory() as directory, ddprund() as (_, port):
        launcher = subprocess.Popen(
            [program("ddprun"), f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job", f"--nproc_per_node={RANKS}",
             "--max-restarts=1", f"--recovery={recovery}", program("train"), "--epochs=1000", "--threads=1",
             "--checkpoint-dir", os.path.join(directory, "checkpoints"), "--checkpoint-every=20"],
            env=measure.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            await_first_step(port, 1, launcher)
            time.sleep(1)  # time for some snapshots and checkpoints
            os.kill(trainers_of(launcher)[1], signal.SIGKILL)
            first, second = await_first_step(port, 2, launcher)[:2]
            if second["in_place"] != (recovery == "inplace"):
                raise RuntimeError(f"--recovery={recovery}, but in_place is {second['in_place']}: {first['cause']}")
        finally:
            launcher.kill()
            launcher.wait()
    seconds = [first["seconds"][phase] for phase in ("detect", "stop")]
    seconds += [second["seconds"][phase] for phase in ("rendezvous", "spawn", "first_step")]
    return {"ms": sum(seconds) * 1e3}


def rows():
    return [Row("inplace", "in-place recovery, 2 of 3 ranks survive: kill → next step",
                {OURS: lambda: next_step_ms("inplace"), PEER: lambda: next_step_ms("restart")},
                [Goal("ms", 0.3, PEER)],
                note="`train` on the digits, kill -9 of a rank; until each rank of the next round"
                     " has finished a step. The peer is `--recovery=restart` with a checkpoint "
                     "every 20 steps")]
