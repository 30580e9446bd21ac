# SPDX-License-Identifier: Apache-2.0
"""The rows about workers that start with their modules imported (docs/warm.md)."""
import contextlib
import functools
import math
import os
import subprocess
import tempfile
import time

import measure
from measure import program, torchrun
from row import OURS, Goal, Row

WORKER, FRAMEWORKS = (os.path.join(measure.HERE, name) for name in ("warm_worker.py", "warm_frameworks.py"))
LIMIT = 100  # seconds for a job
TRIES, TRY_LIMIT = 10, 40  # of a peer's job; the second one in seconds
PRELOAD = ["--preload=torch,torch._dynamo,torch.distributed.fsdp,torch.nn.parallel.distributed"]
CRASH = ["--nproc_per_node=2", "--max-restarts=1"]
PORT = 29400
TWENTIETH = Goal("ms", 0.05, "torchrun")
WHY = " ([why](torchrun.md#different-what-workers-get))"
CURE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"  # otherwise gloo finds addresses of the round before in torchrun's store
NOTE = f"torchrun has `{CURE}`, without which most of its restarts fail{WHY}"


def sides(flags, measured, num_words, script=(WORKER,), preload=lambda: PRELOAD):
    """Returns the row's sides. `num_words`: how many words the workers say. torchrun has the variable with which its restarts
    mostly succeed, and a gloo program of PyTorch 2.15 sometimes aborts at its end. So a peer's failed tries don't count, and
    its job counts however it ends if the workers have said all."""
    def tried(argv, why=""):
        for _ in range(TRIES):
            with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired, ValueError):  # the last: a word is cut short
                return measured(argv, limit=TRY_LIMIT, enough=num_words)
        raise measure.Missing(f"no figure after {TRIES} tries of {TRY_LIMIT} s{why}")
    ours = [program("ddprun"), *flags]
    python = ["--no-python", measure.PYTHON, "-u", *script]
    return {OURS: lambda: measured([*ours, *preload(), *python]),
            "without --preload": lambda: tried([*ours, *python]),
            "torchrun": lambda: tried(["env", CURE, *torchrun(), *flags, *script], WHY)}


def said_in(directory):
    """Returns the times that workers have written, in nanoseconds."""
    said = {}
    for name in os.listdir(directory):
        with open(os.path.join(directory, name), encoding="ascii") as file:
            said[name] = int(file.read())
    return said


def wait_for(launchers, argv, directory, limit, enough):
    """Waits until the launchers have succeeded, and leaves none behind. If the workers have said `enough` words by then, the
    end of their job doesn't matter."""
    deadline = time.monotonic() + limit
    try:
        for launcher in launchers:
            error = launcher.communicate(timeout=max(0, deadline - time.monotonic()))[1]
            if len(os.listdir(directory)) < enough:
                measure.check(argv, launcher.returncode, error)
    except subprocess.TimeoutExpired:
        if len(os.listdir(directory)) < enough:
            raise
    finally:
        for launcher in launchers:
            if launcher.poll() is None:
                measure.stop(launcher, 60)


PIPES = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}


def run(argv, *more, limit=LIMIT, enough=math.inf):
    with tempfile.TemporaryDirectory() as directory:
        begun = time.monotonic_ns()
        argv = [*argv, directory, *more]
        wait_for([subprocess.Popen(argv, env=measure.environment(), **PIPES)], argv, directory, limit, enough)
        return begun, said_in(directory)


def again_ms(said):
    return {"ms": (max(at for name, at in said.items() if name.startswith("1.")) - said["death"]) / 1e6}


def crash_to_step(argv, **more):
    return again_ms(run(argv, "crash", **more)[1])


def hosts_crash_to_step(argv, limit=LIMIT, enough=math.inf):
    """Measures with `argv` run on each of two hosts."""
    import netns
    with netns.Hosts(2) as hosts, tempfile.TemporaryDirectory() as directory:
        launchers = []
        for host in hosts:
            own = [word.format(first=hosts[0].address, own=host.address, is_host=int(host.index == 0)) for word in argv]
            launchers.append(host.popen([*own, directory, "crash"], env=measure.environment(), **PIPES))
        wait_for(launchers, argv, directory, limit, enough)
        return again_ms(said_in(directory))


def start_to_step(argv, **more):
    begun, said = run(argv, **more)
    return {"ms": (max(said.values()) - begun) / 1e6}


def framework_row(name, goal):
    script = (FRAMEWORKS, name)
    kept = tempfile.TemporaryDirectory()  # kept until this process ends

    @functools.cache
    def preload():
        """Runs a job once, which keeps its list of modules. Returns the flags that use the list."""
        flags = ["--preload=auto", f"--preload-cache={kept.name}"]
        run([program("ddprun"), "--standalone", *CRASH, *flags, "--no-python", measure.PYTHON, "-u", *script])
        return flags
    return Row(f"warm-{name}", f"crash → first step of a script that trains with {name.capitalize()}, 2 ranks over gloo",
               sides(["--standalone", *CRASH], crash_to_step, 5, script, preload), [Goal("ms", 0.3, "without --preload"), goal], repeats=3,
               note=f"the modules are those that `--preload=auto` has found in a job before; {NOTE}")


def rows():
    hosts = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=bench", f"--rdzv-endpoint={{first}}:{PORT}", "--local-addr={own}",
             "--rdzv-conf=is_host={is_host},last_call_timeout=1"]
    return [
        Row("warm", "crash → first DDP step, 2 ranks over gloo", sides(["--standalone", *CRASH], crash_to_step, 5),
            [Goal("ms", 200), TWENTIETH], repeats=5,
            note="death of a rank → all ranks of the next round have done a step. The modules are those of docs/warm.md; " + NOTE),
        Row("warm-hosts", "crash → first DDP step, 2 hosts × 2 ranks over gloo", sides([*hosts, *CRASH], hosts_crash_to_step, 9),
            [Goal("ms", 250), TWENTIETH], repeats=5, note=f"as warm; {NOTE}; hosts are network namespaces, which share the processor"),
        Row("warm8", "start of 8 ranks → first DDP step", sides(["--standalone", "--nproc_per_node=8"], start_to_step, 8),
            [Goal("ms", 0.3, "torchrun")], repeats=3, note="from the start of the launcher to the last rank's first step"),
        framework_row("accelerate", TWENTIETH),
        framework_row("lightning", Goal("ms", 0.1, "torchrun")),  # its Trainer itself takes 0.4 s until the first step
        framework_row("trainer", TWENTIETH),
    ]
