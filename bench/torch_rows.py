# SPDX-License-Identifier: Apache-2.0
"""The rows about the backend "ddprun" of torch.distributed, compared with gloo in the same Python programs."""
import os

import measure
import sdk_rows
from row import OURS, Goal, Row

GLOO = "torch gloo"
NAMES = {"small_us": "all-reduce of 4 KiB (µs)", "large_ms": "all-reduce of 25 MiB (ms)",
         "alone_ms": "step of the digits without DDP (ms)", "ddp_ms": "DDP step of the digits (ms)",
         "fsdp_ms": "FSDP2 step of the digits (ms)"}
LIMITS = {"small_us": 0.1, "large_ms": 0.35, "ddp_ms": 0.8, "fsdp_ms": 0.8}


def _side(backend):
    def once():
        program = measure.program("ddprun")
        found = measure.json_of([program, "--standalone", "--nproc_per_node=2", "--log-line-prefix-template=",
                                 os.path.join(measure.HERE, "backend/backend_steps.py"), backend],
                                OMP_NUM_THREADS="1", DDPRUN_PROGRAM=program)
        return {name: found[key] for key, name in NAMES.items()}
    return once


def _one_machine_row():
    return Row("torch-backend", "torch.distributed on 2 ranks of one machine, `init_process_group(\"ddprun\")` beside gloo",
               {OURS: _side("ddprun"), GLOO: _side("gloo")},
               [Goal(NAMES[key], limit, GLOO) for key, limit in LIMITS.items()],
               note="Ranks have one thread each; medians of rank 0. The step without DDP takes 0.79 × gloo's DDP step already, "
                    "so a backend that took no time would barely reach 0.8 ×")


# In an all-reduce of two ranks each one sends half of the tensor twice.
LINE_MS = (25 << 20) * 8 / (sdk_rows.RATE_MBIT * 1e6) * 1000


def _side_on_hosts(backend):
    def once():
        program = measure.program("ddprun")
        found = sdk_rows.on_shaped_hosts(
            lambda host: [program, "--nnodes=2", "--nproc_per_node=1", f"--node-rank={host.index}",
                          "--master-addr=10.77.0.1", "--master-port=29500", "--log-line-prefix-template=",
                          os.path.join(measure.HERE, "backend/backend_steps.py"), backend],
            2, DDPRUN_PROGRAM=program, GLOO_SOCKET_IFNAME="eth0")
        return {name: found[key] for key, name in NAMES.items()}
    return once


def _hosts_row():
    return Row("torch-backend-hosts", "torch.distributed on 2 hosts (namespaces), 1 Gb/s each, `init_process_group(\"ddprun\")` beside gloo",
               {OURS: _side_on_hosts("ddprun"), GLOO: _side_on_hosts("gloo")},
               [*(Goal(NAMES[key], 1.01, GLOO) for key in LIMITS), Goal(NAMES["large_ms"], LINE_MS / 0.9)], repeats=3,
               note="Both fill the cable with 25 MiB, so 1.01 × is as quick. "
                    f"25 MiB take {LINE_MS:.0f} ms on a full cable, {LINE_MS / 0.9:.0f} ms at 0.9 of its rate. Headers of "
                    "Ethernet, IP and TCP are 4 % of that")


def rows():
    return [_one_machine_row(), _hosts_row()]
