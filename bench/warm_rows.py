# SPDX-License-Identifier: Apache-2.0
"""The rows about workers that start with their modules imported (docs/warm.md)."""
import functools
import os
import subprocess
import tempfile
import time

import measure
from measure import program, torchrun
from row import OURS, Goal, Row

WORKER, FRAMEWORKS = (os.path.join(measure.HERE, name) for name in ("warm_worker.py", "warm_frameworks.py"))
TRIES = 3
PRELOAD = ["--preload=torch,torch._dynamo,torch.distributed.fsdp,torch.nn.parallel.distributed"]
CRASH = ["--nproc_per_node=2", "--max-restarts=1"]
PORT = 29400


def sides(flags, measured, script=(WORKER,), preload=lambda: PRELOAD):
    """Returns the row's sides. Failed tries of a peer are not measured: torchrun's restarts succeed only in some tries
    (docs/torchrun.md), and a gloo program of PyTorch 2.15 sometimes aborts at its end."""
    def tried(argv):
        for attempt in range(TRIES):
            try:
                return measured(argv)
            except (RuntimeError, subprocess.TimeoutExpired):
                if attempt + 1 == TRIES:
                    raise
    ours = [program("ddprun"), *flags]
    python = ["--no-python", measure.PYTHON, "-u", *script]
    return {OURS: lambda: measured([*ours, *preload(), *python]),
            "without --preload": lambda: tried([*ours, *python]),
            "torchrun": lambda: tried([*torchrun(), *flags, *script])}


def said_in(directory):
    """Returns the times that workers have written, in nanoseconds."""
    said = {}
    for name in os.listdir(directory):
        with open(os.path.join(directory, name), encoding="ascii") as file:
            said[name] = int(file.read())
    return said


def run(argv, *more):
    with tempfile.TemporaryDirectory() as directory:
        begun = time.monotonic_ns()
        argv = [*argv, directory, *more]
        done = subprocess.run(argv, env=measure.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, timeout=100)
        measure.check(argv, done.returncode, done.stderr)
        return begun, said_in(directory)


def again_ms(said):
    return {"ms": (max(at for name, at in said.items() if name.startswith("1.")) - said["death"]) / 1e6}


def crash_to_step(argv):
    return again_ms(run(argv, "crash")[1])


def hosts_crash_to_step(argv):
    """Measures with `argv` run on each of two hosts."""
    import netns
    with netns.Hosts(2) as hosts, tempfile.TemporaryDirectory() as directory:
        launchers = []
        for host in hosts:
            own = [word.format(first=hosts[0].address, own=host.address, is_host=int(host.index == 0)) for word in argv]
            launchers.append(host.popen([*own, directory, "crash"], env=measure.environment(), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        for launcher in launchers:
            error = launcher.communicate(timeout=100)[1]
            measure.check(argv, launcher.returncode, error)
        return again_ms(said_in(directory))


def start_to_step(argv):
    begun, said = run(argv)
    return {"ms": (max(said.values()) - begun) / 1e6}


def framework_row(name):
    script = (FRAMEWORKS, name)
    kept = tempfile.TemporaryDirectory()  # kept until this process ends

    @functools.cache
    def preload():
        """Runs a job once, which keeps its list of modules. Returns the flags that use the list."""
        flags = ["--preload=auto", f"--preload-cache={kept.name}"]
        run([program("ddprun"), "--standalone", *CRASH, *flags, "--no-python", measure.PYTHON, "-u", *script])
        return flags
    return Row(f"warm-{name}", f"crash → first step of a script that trains with {name.capitalize()}, 2 ranks over gloo",
               sides(["--standalone", *CRASH], crash_to_step, script, preload), [Goal("ms", 0.3, "without --preload")], repeats=3,
               note="the modules are those that `--preload=auto` has found in a job before")


def rows():
    hosts = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=bench", f"--rdzv-endpoint={{first}}:{PORT}", "--local-addr={own}",
             "--rdzv-conf=is_host={is_host},last_call_timeout=1"]
    return [
        Row("warm", "crash → first DDP step, 2 ranks over gloo", sides(["--standalone", *CRASH], crash_to_step),
            [Goal("ms", 200)], repeats=5,
            note="death of a rank → all ranks of the next round have done a step. The modules are those of docs/warm.md"),
        Row("warm-hosts", "crash → first DDP step, 2 hosts × 2 ranks over gloo", sides([*hosts, *CRASH], hosts_crash_to_step),
            [Goal("ms", 250)], repeats=5, note="as warm; hosts are network namespaces, which share the processor"),
        Row("warm8", "start of 8 ranks → first DDP step", sides(["--standalone", "--nproc_per_node=8"], start_to_step),
            [Goal("ms", 0.3, "torchrun")], repeats=3, note="from the start of the launcher to the last rank's first step"),
        framework_row("accelerate"),
        framework_row("lightning"),
        framework_row("trainer"),
    ]
