# SPDX-License-Identifier: Apache-2.0
"""The row about workers' output: to log files and to the console."""
import os
import subprocess
import tempfile
import time

import measure
from measure import program, torchrun
from row import OURS, Goal, Row

WORKERS = 8
LINES = 100_000  # of each worker
TICK = os.sysconf("SC_CLK_TCK")


def launchers_of(pid):
    """Returns the launcher's own processes: its tree without the workers."""
    return [p for p in measure.descendants(pid) if measure._status(p, "Name") != "noisy_worker"]


def cpu_seconds(pid):
    """Returns the user and system time of one process, ended threads included."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) / TICK


def tee(launcher):
    """Runs once. Returns lines per second and CPU time, from the first line on the console to the last one."""
    wanted = WORKERS * LINES
    buffer = bytearray(1 << 20)
    with tempfile.TemporaryDirectory() as logs:
        argv = launcher() + ["--standalone", f"--nproc_per_node={WORKERS}", f"--log-dir={logs}", "--tee=3", "--no-python",
                             program("noisy_worker"), str(LINES)]
        process = subprocess.Popen(argv, env=measure.environment(), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        begin = cpu_before = None
        seen, memory, looked = 0, 0, 0.0
        while seen < wanted:
            size = os.readv(process.stdout.fileno(), [buffer])
            if size == 0:
                break
            now = time.perf_counter()
            if begin is None:
                begin = now
                cpu_before = {p: cpu_seconds(p) for p in launchers_of(process.pid)}
            seen += buffer.count(b"\n", 0, size)
            if now - looked > 0.5 or seen >= wanted:  # rarely, because reading /proc costs both sides CPU time
                looked = now
                own = [p for p in launchers_of(process.pid) if p in cpu_before]  # without new workers
                cpu = sum(cpu_seconds(p) - cpu_before[p] for p in own)
                memory = max(memory, sum(int((measure._status(p, "VmHWM") or "0 kB").split()[0]) for p in own))
        seconds = time.perf_counter() - begin
        process.stdout.close()
        process.wait(timeout=120)
        if seen != wanted:
            raise RuntimeError(f"{' '.join(argv)}: {seen} of {wanted} lines came")
    return {"ms for 100,000 lines": seconds / wanted * 1e8, "CPU ms for 100,000 lines": cpu / wanted * 1e8, "resident MB": memory / 1e3}


def tee_row():
    return Row(
        "tee", f"{WORKERS} workers' 100-byte lines to log files and to the console",
        {OURS: lambda: tee(lambda: [program("ddprun")]), "torchrun": lambda: tee(torchrun)},
        [Goal("ms for 100,000 lines", 0.2, "torchrun"), Goal("CPU ms for 100,000 lines", 0.2, "torchrun"),
         Goal("resident MB", 20)],
        note=f"Each worker writes {LINES:,} lines as fast as they are taken; the console is a pipe. CPU and "
             "memory are those of the launcher's own processes")


def rows():
    return [tee_row()]
