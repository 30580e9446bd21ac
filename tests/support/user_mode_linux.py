# SPDX-License-Identifier: Apache-2.0
"""Runs a Linux kernel as a process of ours (user-mode Linux). The kernel has this machine's files and its own cgroup v2
with all controllers, whatever this machine has. It needs no special right."""
import json
import os
import shutil
import signal
import subprocess
import sys

GUEST = "user-mode-linux-guest"


class Unavailable(Exception):
    pass


def program():
    found = shutil.which("linux.uml") or shutil.which("linux.uml", path="/usr/bin:/usr/local/bin")
    if not found:
        raise Unavailable("no linux.uml here (Debian: user-mode-linux)")
    return found


def run(script, scratch, environment, disk=None, memory="768M", timeout=200):
    """Boots it and runs `script` (Python) as its only program, as `script user-mode-linux-guest FILE`. Returns the JSON
    that the script wrote to FILE. `environment`: the script's. `disk`: the file that is its block device 98:0."""
    linux = program()
    answer = os.path.join(scratch, "answer.json")
    first = os.path.join(scratch, "init")
    variables = "\n".join(f"export {name}={_quoted(value)}" for name, value in environment.items())
    with open(first, "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\nmount -t proc none /proc; mount -t sysfs none /sys; mount -t cgroup2 none /sys/fs/cgroup\n"
                "mount -t tmpfs none /run; mkdir -p /dev/shm; mount -t tmpfs none /dev/shm; ip link set lo up\n"
                f"{variables}\nexport TMPDIR=/run HOME=/run\ncd /run\n"
                f"{_quoted(sys.executable)} -B {_quoted(os.path.abspath(script))} {GUEST} {_quoted(answer)} "
                f">{_quoted(answer)}.log 2>&1 </dev/null\necho o >/proc/sysrq-trigger\nexec sleep 60\n")
    os.chmod(first, 0o755)
    arguments = [linux, "rootfstype=hostfs", "rootflags=/", "rw", f"mem={memory}", f"init={first}", "con=null",
                 "con0=null,fd:1", "quiet", "loglevel=3", *([f"ubd0={disk}"] if disk else [])]
    # It runs in a session of its own, because it kills its process group when it ends.
    kernel = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              start_new_session=True, env={**os.environ, "TMPDIR": scratch}, text=True, errors="replace")
    try:
        said, _ = kernel.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(kernel.pid, signal.SIGKILL)
        said, _ = kernel.communicate()
        said += f"\n(killed after {timeout} s)"
    finally:
        if kernel.poll() is None:
            os.killpg(kernel.pid, signal.SIGKILL)
            kernel.wait()
    try:
        with open(answer, encoding="utf-8") as f:
            return json.load(f)
    except (OSError, ValueError) as error:
        log = ""
        if os.path.exists(answer + ".log"):
            with open(answer + ".log", encoding="utf-8", errors="replace") as f:
                log = f.read()
        if not log:  # the kernel did not come up, because this machine doesn't let it
            with open("/proc/cpuinfo", encoding="ascii", errors="replace") as f:
                why = "it knows no CPU with AMX" if " amx_tile" in f.read() else said[-300:]
            raise Unavailable(f"{linux} does not run here: {why}") from error
        raise AssertionError(f"no answer from the guest: {error}\n{said}\n{log}") from error


def _quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"
