# SPDX-License-Identifier: Apache-2.0
"""The rows about workers that begin with their imports done (docs/warm.md)."""
import os
import subprocess
import tempfile
import time

import measure
from measure import program, torchrun
from row import OURS, Goal, Row

WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "warm_worker.py")
TRIES = 10
PRELOAD = "--preload=torch,torch._dynamo,torch.distributed.fsdp,torch.nn.parallel.distributed"


def sides(flags, measured):
    """torchrun's jobs come back from a restart in some tries only (docs/torchrun.md): a try that fails is not measured."""
    def theirs():
        for attempt in range(TRIES):
            try:
                return measured([*torchrun(), "--standalone", *flags, WORKER])
            except (RuntimeError, subprocess.TimeoutExpired):
                if attempt + 1 == TRIES:
                    raise
    ours = [program("ddprun"), "--standalone", *flags]
    python = ["--no-python", measure.PYTHON, "-u", WORKER]
    return {OURS: lambda: measured([*ours, PRELOAD, *python]),
            "without --preload": lambda: measured([*ours, *python]),
            "torchrun": theirs}


def run(argv, *more):
    """A function that reads a time that a worker has said, in nanoseconds."""
    with tempfile.TemporaryDirectory() as directory:
        begun = time.monotonic_ns()
        argv = [*argv, directory, *more]
        done = subprocess.run(argv, env=measure.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, timeout=100)
        measure.check(argv, done.returncode, done.stderr)
        said = {}
        for name in os.listdir(directory):
            with open(os.path.join(directory, name), encoding="ascii") as file:
                said[name] = int(file.read())
        return begun, said


def crash_to_step(argv):
    _, said = run(argv, "crash")
    return {"ms": (max(said["1.0"], said["1.1"]) - said["death"]) / 1e6}


def start_to_step(argv):
    begun, said = run(argv)
    return {"ms": (max(said.values()) - begun) / 1e6}


def rows():
    return [
        Row("warm", "crash → first DDP step, 2 ranks over gloo", sides(["--nproc_per_node=2", "--max-restarts=1"], crash_to_step),
            [Goal("ms", 200)], repeats=5,
            note="death of a rank → all ranks of the next round have done a step. The modules are those of docs/warm.md"),
        Row("warm8", "start of 8 ranks → first DDP step", sides(["--nproc_per_node=8"], start_to_step),
            [Goal("ms", 0.3, "torchrun")], repeats=3, note="from the start of the launcher to the last rank's first step"),
    ]
