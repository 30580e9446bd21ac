# SPDX-License-Identifier: Apache-2.0
"""The rows about the launcher: start, of few and of many workers, and crash → running."""
import os
import subprocess
import tempfile
import time

import measure
from measure import mpiexec, program, torchrun
from row import OURS, Goal, Row

WHEEL = "wheel"


def ddprun(*args):
    return [program("ddprun"), *args]


def of_the_wheel(*args):
    return [measure.wheel_program("ddprun"), *args]


# The wheel's program is the one that users install.
HYDRA_GOAL = Goal("wall ms", 0.8, "mpiexec.hydra", side=WHEEL)
INSTRUCTIONS = "million instructions of `--version`"


def start_row():
    counter = measure.instruction_counter()

    def side(launcher, *, memory, is_ours=False):
        def once():
            seconds = measure.wall_seconds(launcher() + ["true"])
            megabytes = measure.launcher_megabytes(launcher() + memory, 2)
            instructions = measure.million_instructions([launcher()[0], "--version"]) if is_ours else None
            counted = {} if instructions is None else {INSTRUCTIONS: instructions}
            return {"wall ms": seconds * 1e3, "resident MB": megabytes, **counted}
        return once

    sleep = ["sleep", "100"]
    two = ("--standalone", "--nproc_per_node=2")
    return Row(
        "start", "start 2 × `true`",
        {OURS: side(lambda: ddprun(*two), memory=sleep, is_ours=True),
         WHEEL: side(lambda: of_the_wheel(*two), memory=sleep, is_ours=True),
         "torchrun": side(lambda: torchrun() + ["--standalone", "--nproc_per_node=2", "--no-python"],
                          memory=sleep),
         "mpiexec.hydra": side(lambda: mpiexec() + ["-n", "2"], memory=sleep)},
        [HYDRA_GOAL, Goal("wall ms", 1.2, OURS, side=WHEEL), Goal("resident MB", 8), Goal("resident MB", 8, side=WHEEL),
         Goal(INSTRUCTIONS, 3, side=WHEEL)], repeats=10,
        note="resident: peak of the launcher's own processes while 2 × `sleep` run. The wheel's program is linked statically, "
             "the native one to Debian's shared OpenSSL. " +
             (f"Instructions outside of the kernel, the loader's too, are counted by {counter}" if counter else
              "Nobody counts instructions here: perf has no counters, and valgrind is missing (scripts/setup.sh full)"))


def spawn64_row():
    num_workers = 64

    def side(launcher):
        return lambda: {"wall ms": measure.wall_seconds(launcher() + ["true"]) * 1e3}

    return Row(
        "spawn64", f"start {num_workers} × `true`",
        {OURS: side(lambda: ddprun("--standalone", f"--nproc_per_node={num_workers}")),
         WHEEL: side(lambda: of_the_wheel("--standalone", f"--nproc_per_node={num_workers}")),
         "torchrun": side(lambda: torchrun() + ["--standalone", f"--nproc_per_node={num_workers}", "--no-python"]),
         "mpiexec.hydra": side(lambda: mpiexec() + ["-n", str(num_workers)])},
        [HYDRA_GOAL], repeats=10, note="from the start of the launcher to its end")


def crash_to_running_ms(argv_of, num_workers):
    """Measures on two hosts in network namespaces. `argv_of(host, hosts)` is the launcher's command line."""
    import netns
    with netns.Hosts(2) as hosts, tempfile.TemporaryDirectory() as directory:
        running = []
        for host in hosts:
            argv = argv_of(host, hosts) + [program("restart_worker"), directory]
            running.append((argv, host.popen(
                argv, env=measure.environment(), stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)))
            # Starts the host with the server first, to be fair: peers don't meet faster if a client came first.
            time.sleep(0.05)
        for argv, process in running:
            measure.check(argv, process.wait(timeout=120), process.stderr.read())
            process.stderr.close()

        def read(name):
            with open(os.path.join(directory, name)) as f:
                return int(f.read())
        last = max(read(f"1.{rank}") for rank in range(num_workers))
        return {"ms": (last - read("death")) / 1e6}


def restart_row():
    def ours(host, hosts):
        return ddprun("--nnodes=2", "--nproc_per_node=2", "--max-restarts=1",
                      f"--rdzv-endpoint={hosts[0].address}:29400")

    def theirs(host, hosts):
        return torchrun() + ["--nnodes=2", "--nproc_per_node=2", "--max-restarts=1", "--no-python",
                             "--rdzv-backend=c10d", "--rdzv-id=bench",
                             f"--rdzv-endpoint={hosts[0].address}:29400",
                             f"--rdzv-conf=is_host={1 if host.index == 0 else 0}",
                             f"--local-addr={host.address}"]
    return Row(
        "restart", "crash → all workers running again, 2 hosts × 2",
        {OURS: lambda: crash_to_running_ms(ours, 4),
         "torchrun": lambda: crash_to_running_ms(theirs, 4)},
        [Goal("ms", 150)],
        note="death of a worker → first instruction of the last new worker; hosts are network "
             "namespaces; a C worker, default signals")


def rows():
    return [start_row(), spawn64_row(), restart_row()]
