# SPDX-License-Identifier: Apache-2.0
"""The row about the observer of plain PyTorch programs: its figures beside the script's own, and what it costs."""
import json
import os
import tempfile

import measure
from row import OURS, Goal, Row

OFF = "--observe=off"
STEPS = 600
STEP_MS = "median step, by the script (ms)"
OBSERVED = {"step": "mean step, observed ÷ the script's own", "loader": "wait for data, observed ÷ the script's own",
            "exposed": "wait in backward(), observed ÷ the script's own"}


def _observed(events, rank):
    """Returns the means of a rank's steps and of its waits in seconds, over all "progress" events."""
    told = [each for event in events if event["event"] == "progress" for each in event["ranks"] if each["rank"] == rank]
    sums, timed, before = dict.fromkeys(OBSERVED, 0), 0, 1  # the first step has no time
    for each in told:
        if each["step_seconds"] is None:
            continue
        for name in OBSERVED:
            sums[name] += each[name + "_seconds"] * (each["step"] - before)
        timed += each["step"] - before
        before = each["step"]
    return {name: value / timed for name, value in sums.items()}


def _run(*flags):
    script = os.path.join(measure.HERE, "observe/observed_steps.py")
    return measure.json_of([measure.program("ddprun"), "--standalone", "--nproc_per_node=2", "--log-line-prefix-template=",
                            *flags, script, str(STEPS)], OMP_NUM_THREADS="1")


def _on():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "events")
        own = _run("--events=" + path)
        with open(path) as file:
            seen = _observed(map(json.loads, file), 0)
    # A figure that is too small is as wrong as one that is too large.
    return {STEP_MS: own["median_step"] * 1e3,
            **{what: max(seen[name] / own[name], own[name] / seen[name]) for name, what in OBSERVED.items()}}


def rows():
    return [Row("observe", "a plain DDP training over gloo, 2 ranks, as ddprun observes it",
                {OURS: _on, OFF: lambda: {STEP_MS: _run(OFF)["median_step"] * 1e3}},
                [*(Goal(what, 1.02) for what in OBSERVED.values()), Goal(STEP_MS, 1.005, OFF)], repeats=9,
                note=f"{STEPS} steps; rank 1's data take longer. Observed figures are those of rank 0's `progress` events, which page and report show, "
                     "too. Ratios are the larger one of both ways round")]
