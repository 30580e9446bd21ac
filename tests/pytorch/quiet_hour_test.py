#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that there is no false alarm of a hang. A first compilation takes 55 s, checkpoints take 40 s,
and a debugger holds a rank for 90 s: by ptrace, pdb, or debugpy.

    quiet_hour_test.py [MINUTES]    for scripts/soak.sh; the default is an hour
"""
import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

import harness
import frozen
from editor import Editor
from ports import free_port

MINUTES = float(sys.argv.pop()) if sys.argv[1:] else 60
HELD, BETWEEN = 90, 300  # seconds


class QuietHour(harness.Job):
    def traced(self, rank):
        """Holds all threads of the rank, as a debugger does."""
        with contextlib.ExitStack() as debugger:
            for thread in os.listdir(f"/proc/{self.pids[rank]}/task"):
                debugger.enter_context(frozen.thread(int(thread)))
            time.sleep(HELD)  # the rank must stand still for this long

    def at_the_prompt(self, _):
        """Holds rank 0, which has the terminal, in pdb."""
        os.kill(int(self.pids["0"]), signal.SIGUSR1)
        time.sleep(HELD)
        self.process.stdin.write("continue\n")
        self.process.stdin.flush()

    def in_debugpy(self, rank):
        """Holds the rank in a debugger that an editor has begun."""
        if rank not in self.ports:  # debugpy starts once in a process
            self.ports[rank] = port = free_port()
            subprocess.run([os.path.join(harness.BIN, "ddprunctl"), "debug", "job", rank, f"--port={port}",
                            f"--rdzv-endpoint={self.endpoint}"], env=harness.environment(), timeout=HELD, check=True)
        editor = Editor(self.ports[rank])
        editor.attach()
        thread = editor.answer(editor.send("threads"))["threads"][0]["id"]
        editor.answer(editor.send("pause", threadId=thread))
        editor.event("stopped")
        time.sleep(HELD)
        editor.answer(editor.send("disconnect"))
        editor.close()

    def test_nobody_speaks_of_a_hang(self):
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.process = process = subprocess.Popen(
            [harness.DDPRUN, f"--rdzv-endpoint={self.endpoint}", "--rdzv-id=job", "--nproc_per_node=2", harness.job("quiet_hour"),
             str(MINUTES * 60)], env=harness.environment(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        self.ports = {}  # of debugpy, by rank
        end = time.monotonic() + MINUTES * 60
        self.pids = dict(re.search(r"rank (\d) is process (\d+)", process.stdout.readline()).groups() for _ in range(2))
        # debugpy comes last, since its traces in a process remain.
        kinds = [self.at_the_prompt, self.traced, self.traced, self.at_the_prompt]
        if shutil.which("gdb") and importlib.util.find_spec("debugpy"):
            kinds.append(self.in_debugpy)
        holds = 0
        while time.monotonic() + 2 * HELD < end:
            kinds[min(holds, len(kinds) - 1)](str(holds % 2))
            holds += 1
            time.sleep(min(BETWEEN, max(0, end - time.monotonic())))
        said, told = process.communicate(timeout=300)
        print(said, f"held {holds} times", flush=True)
        self.assertEqual(process.returncode, 0, told)
        self.assertEqual(len(re.findall(r"is done: [1-9]\d* checkpoints", said)), 2, said)
        self.assertNotIn("hang", told)
        self.assertNotIn("stalled", told)


if __name__ == "__main__":
    harness.require_torch()
    harness.runner.main()
