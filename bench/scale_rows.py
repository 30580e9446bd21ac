# SPDX-License-Identifier: Apache-2.0
"""The row about size: 10,000 emulated nodes with a real ddprund. It has no peer: no other launcher
has an emulator."""
from measure import json_of, program
from row import OURS, Goal, Row


def emulate():
    found = json_of([program("fleet_load"), "--json", "--agents=10000", "--failures=1", "--losses=1"])
    return {"join → all told (ms)": found["join_ms"],
            "worker failed → all told (ms)": found["failure_told_ms"][0],
            "node lost → all told (ms)": found["loss_told_ms"][0],
            "node lost → all run again (ms)": found["loss_running_ms"][0],
            "KB per agent": found["daemon_bytes_per_agent"] / 1e3}


def rows():
    return [Row("scale", "10,000 emulated nodes × 8 workers", {OURS: emulate},
                [Goal("join → all told (ms)", 3000), Goal("node lost → all told (ms)", 1000),
                 Goal("KB per agent", 20)], repeats=3,
                note="`fleet_load`: all agents in one process, which shares the cores with the "
                     "rendezvous; a lost connection is given 150 ms to come back")]
