# SPDX-License-Identifier: Apache-2.0
"""Servers for the Python tests: ours (a program given on the command line) and PyTorch's."""
import contextlib
import os
import subprocess
import sys


@contextlib.contextmanager
def serving(command):
    """Runs `command`, which prints its port as its first line; yields the port."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        if not line.strip().isdigit():
            sys.exit(f"{command[0]} printed {line!r} and not its port")
        yield int(line)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def torch_server():
    """PyTorch's own server (libuv), in a process of its own."""
    bench = os.path.join(os.path.dirname(__file__), "../../../bench/store/torch_server.py")
    return serving([sys.executable, bench])
