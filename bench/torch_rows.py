# SPDX-License-Identifier: Apache-2.0
"""The backend "ddprun" of torch.distributed beside gloo, in the same Python programs."""
import os

import measure
from row import OURS, Goal, Row

GLOO = "torch gloo"
NAMES = {"small_us": "all-reduce of 4 KiB (µs)", "large_ms": "all-reduce of 25 MiB (ms)",
         "ddp_ms": "DDP step of the digits (ms)", "fsdp_ms": "FSDP2 step of the digits (ms)"}
LIMITS = {"small_us": 0.1, "large_ms": 0.35, "ddp_ms": 0.8, "fsdp_ms": 0.8}


def _side(backend):
    def once():
        program = measure.program("ddprun")
        found = measure.json_of([program, "--standalone", "--nproc_per_node=2", "--log-line-prefix-template=",
                                 os.path.join(measure.HERE, "backend/backend_steps.py"), backend],
                                OMP_NUM_THREADS="1", DDPRUN_PROGRAM=program)
        return {name: found[key] for key, name in NAMES.items()}
    return once


def rows():
    return [Row("torch-backend", "torch.distributed on 2 ranks of one machine, `init_process_group(\"ddprun\")` beside gloo",
                {OURS: _side("ddprun"), GLOO: _side("gloo")},
                [Goal(NAMES[key], limit, GLOO) for key, limit in LIMITS.items()],
                note="Ranks have one thread each; medians of rank 0")]
