# SPDX-License-Identifier: Apache-2.0
"""The row about all-reduce between two local ranks: the host communicator and PyTorch's gloo."""
import json
import os
import subprocess

import measure
from row import OURS, Goal, Row

SIZES = ["4096", str(25 << 20)]
LARGE = "25 MiB, buffer in the arena (ms)"
SMALL = "4 KiB (µs)"


def _json_of(argv):
    done = subprocess.run(argv, env=measure.environment(), stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)
    measure.check(argv, done.returncode, done.stderr)
    return json.loads(done.stdout)


def _ours():
    found = _json_of([measure.program("allreduce_bench"), *SIZES])
    return {SMALL: found["plain_us"][SIZES[0]],
            LARGE: found["arena_us"][SIZES[1]] / 1000,
            "25 MiB, plain buffer (ms)": found["plain_us"][SIZES[1]] / 1000}


def _gloo():
    if not os.path.exists(measure.PYTHON):
        raise measure.Missing(".venv is missing: scripts/setup.sh bench")
    script = os.path.join(measure.HERE, "allreduce/allreduce_gloo.py")
    found = _json_of([measure.PYTHON, script, *SIZES])["gloo_us"]
    return {SMALL: found[SIZES[0]], "25 MiB, plain buffer (ms)": found[SIZES[1]] / 1000}


def rows():
    return [Row("all-reduce", "all-reduce of float32, 2 ranks on one machine, median of rank 0",
                {OURS: _ours, "torch gloo": _gloo}, [Goal(LARGE, 4), Goal(SMALL, 20)])]
