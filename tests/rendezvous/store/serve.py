# SPDX-License-Identifier: Apache-2.0
"""Runs servers for the Python tests: ours (a program on the command line) and PyTorch's."""
import contextlib
import os
import re
import subprocess
import sys
import threading


@contextlib.contextmanager
def serving(command):
    """Runs a server; yields its port. `ddprund` gets a free port of 127.0.0.1 and logs it. Other programs print it as
    their first line."""
    if os.path.basename(command[0]) == "ddprund":
        command = command + ["--listen", "127.0.0.1:0"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                                   errors="backslashreplace")
        output, pattern = process.stderr, r"listening on 127\.0\.0\.1:(\d+)"
    else:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        output, pattern = process.stdout, r"^(\d+)$"
    drain = None
    try:
        found = None
        while not found:
            line = output.readline()
            if not line:
                sys.exit(f"{command[0]} ended without naming its port")
            found = re.search(pattern, line.strip())
        # This thread reads the pipe, because a full pipe would stop the server.
        drain = threading.Thread(target=output.read)
        drain.start()
        yield int(found.group(1))
    finally:
        process.kill()
        process.wait()
        if drain:
            drain.join()
        output.close()


def torch_server():
    """Runs PyTorch's own server (libuv), in a process of its own."""
    bench = os.path.join(os.path.dirname(__file__), "../../../bench/store/torch_server.py")
    return serving([sys.executable, bench, "--ipv4"])
