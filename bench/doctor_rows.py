# SPDX-License-Identifier: Apache-2.0
"""The row about `ddprunctl doctor`. It has no peer: other launchers' health checks run tools for minutes."""
import json
import subprocess
import time

from measure import check, environment, program
from row import OURS, Goal, Row


def doctor():
    argv = [program("ddprunctl"), "doctor", "--json"]
    began = time.monotonic()
    done = subprocess.run(argv, env=environment(), text=True, capture_output=True, timeout=60)
    took = time.monotonic() - began
    check(argv, 0 if done.returncode in (0, 1, 2, 3) and done.stdout else done.returncode or 1, done.stderr)
    json.loads(done.stdout)
    return {"wall ms": took * 1e3}


def rows():
    return [Row("doctor", "`ddprunctl doctor`, all checks of this machine", {OURS: doctor}, [Goal("wall ms", 1000)],
                repeats=10, note="checks that may block are given 0.5 s")]
