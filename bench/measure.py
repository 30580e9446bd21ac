# SPDX-License-Identifier: Apache-2.0
"""Measures for bench/run.py: times of commands, memory of a launcher, figures in a bench program's JSON."""
import functools
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(ROOT, "build/release/bin"))
VENV = os.path.join(ROOT, ".venv/bin")
PYTHON = os.path.join(VENV, "python3")
sys.path.insert(0, os.path.join(ROOT, "tests/support"))


class Missing(Exception):
    """A program that a row needs is missing. The text says which one and how to get it. It begins with "skipped: " if
    the machine lacks the hardware that the row is about."""


def program(name, hint="cmake --preset release && cmake --build build/release"):
    """Returns the path of a program of ours, of .venv, or in PATH."""
    for directory in (BIN, VENV, *os.environ.get("PATH", "").split(":")):
        path = os.path.join(directory, name)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    raise Missing(f"{name} is missing: {hint}")


def torchrun():
    if not os.path.exists(os.path.join(VENV, "torchrun")):
        raise Missing("torchrun is missing: scripts/setup.sh bench")
    return [PYTHON, os.path.join(VENV, "torchrun")]


def mpiexec():
    return [program("mpiexec.hydra", "scripts/setup.sh bench")]


@functools.cache
def _wheel():
    """Installs the wheel of this commit out of dist/. Returns the environment's folder, which goes with this process."""
    at = os.path.join(ROOT, "dist", f"ddprun-*manylinux*_{os.uname().machine}.whl")
    wheels = sorted(glob.glob(at), key=os.path.getmtime)
    if not wheels:
        raise Missing("dist/ has no wheel: scripts/wheel.sh")
    commit = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%ct"], check=True, stdout=subprocess.PIPE, text=True).stdout
    with zipfile.ZipFile(wheels[-1]) as wheel:
        packed = wheel.infolist()[0].date_time  # the commit's, in steps of two seconds
    if packed != time.gmtime(int(commit) // 2 * 2)[:6]:
        raise Missing("dist/ has the wheel of another commit: scripts/wheel.sh")
    folder = tempfile.TemporaryDirectory(prefix="ddprun-bench-")
    for argv in ([PYTHON, "-m", "venv", folder.name],
                 [os.path.join(folder.name, "bin/pip"), "install", "--quiet", "--no-index", wheels[-1]]):
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
        check(argv, done.returncode, done.stdout)
    return folder


def wheel_program(name):
    """Returns the path of a program of the wheel, installed as pip does."""
    return os.path.join(_wheel().name, "bin", name)


# Each counts the instructions that a program executes outside of the kernel. Virtual machines often have no counters for perf.
COUNTERS = {"perf": (["perf", "stat", "-x,", "-e", "instructions:u", "--"], r"^(\d+),.*instructions:u"),
            "valgrind": (["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--"], r"Collected : (\d+)$")}


def _count(counter, argv):
    command, pattern = COUNTERS[counter]
    if not shutil.which(command[0]):
        return None
    done = subprocess.run([*command, *argv], env=environment(LC_ALL="C"), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True, timeout=60)
    counted = re.search(pattern, done.stderr, re.M) if done.returncode == 0 else None
    return int(counted[1]) / 1e6 if counted else None


@functools.cache
def instruction_counter():
    """Returns the first of COUNTERS that counts on this machine, or None."""
    return next((counter for counter in COUNTERS if _count(counter, ["true"])), None)


def million_instructions(argv):
    """Returns how many instructions the command executes outside of the kernel, or None without an instruction_counter()."""
    counter = instruction_counter()
    if not counter:
        return None
    counted = _count(counter, argv)
    if counted is None:
        raise RuntimeError(f"{counter} counted nothing: {' '.join(argv)}")
    return counted


def environment(**more):
    """Returns our environment without the variables that would make the sides behave differently."""
    dropped = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "PET_", "SLURM_", "DDPRUN_",
               "PMI_", "OMP_NUM_THREADS")
    base = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    return {**base, "PYTHON_EXEC": PYTHON, "XDG_CONFIG_HOME": "/nonexistent", **more}


def check(argv, code, output=""):
    if code != 0:
        raise RuntimeError(f"{' '.join(argv)} ended with {code}\n{output}")


def wall_seconds(argv, timeout=300, **more):
    """Returns the seconds from start to end of a command, which must succeed."""
    begin = time.perf_counter()
    process = subprocess.Popen(argv, env=environment(**more), stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, close_fds=False)
    error = process.communicate(timeout=timeout)[1]
    seconds = time.perf_counter() - begin
    check(argv, process.returncode, error.decode(errors="replace"))
    return seconds


def json_of(argv, timeout=600, **more):
    """Returns the last line that a bench program prints, as a dictionary."""
    done = subprocess.run(argv, env=environment(**more), stdin=subprocess.DEVNULL, timeout=timeout,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    check(argv, done.returncode, done.stdout + done.stderr)
    lines = [line for line in done.stdout.splitlines() if line.lstrip().startswith("{")]
    if not lines:
        raise RuntimeError(f"{' '.join(argv)} printed no JSON line\n{done.stdout}{done.stderr}")
    return json.loads(lines[-1])


def _status(pid, field):
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as f:
            for line in f:
                if line.startswith(field + ":"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return None


def descendants(pid):
    """Returns `pid` and all processes below it."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as f:
            children = [int(c) for c in f.read().split()]
    except OSError:
        children = []
    return [pid] + [d for c in children for d in descendants(c)]


def launcher_megabytes(argv, num_workers, worker="sleep"):
    """Returns the sum of the peak resident memory of a launcher's processes in MB, read while its workers
    run. The workers, named `worker`, are left out."""
    process = subprocess.Popen(argv, env=environment(), stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            tree = descendants(process.pid)
            names = {p: _status(p, "Name") for p in tree}
            if list(names.values()).count(worker) == num_workers:
                break
            time.sleep(0.01)
        else:
            raise RuntimeError(f"{' '.join(argv)}: its workers never ran")
        own = [p for p in tree if names[p] != worker]
        return sum(int((_status(p, "VmHWM") or "0 kB").split()[0]) for p in own) / 1e3
    finally:
        stop(process, 40)


def stop(launcher, patience):
    """Has the launcher end its workers, and kills it after so many seconds."""
    launcher.terminate()
    try:
        launcher.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        launcher.kill()
        launcher.communicate()


def _gpus():
    if not shutil.which("nvidia-smi"):
        return ""
    done = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60)
    names = done.stdout.splitlines() if done.returncode == 0 else []
    return f"{len(names)} × {names[0]}, " if names else ""


def machine():
    """Returns one line: processor, cores, memory, GPUs, kernel, system."""
    with open("/proc/cpuinfo") as f:
        model = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), "?")
    with open("/proc/meminfo") as f:
        gib = int(f.readline().split()[1]) / 2**20
    with open("/etc/os-release") as f:
        system = next((line.split('"')[1] for line in f if line.startswith("PRETTY_NAME")), "?")
    return f"{model}, {os.cpu_count()} cores, {gib:.0f} GiB, {_gpus()}Linux {os.uname().release}, {system}"
