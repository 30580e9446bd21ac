# SPDX-License-Identifier: Apache-2.0
"""The row about the agent's cost of reading its node's state. It has no peer: torchrun's agent doesn't read any."""
import http.client
import os
import subprocess
import tempfile
import time

from measure import PYTHON, environment, program
import ports
from row import OURS, Goal, Row
from service_rows import cpu_seconds

NUM_WORKERS = 8
NUM_READINGS = 9
SECONDS_BETWEEN = 5  # between a job's readings, and between the requests of a frequent Prometheus

# A worker with as many threads, children and connections as a rank of a large job.
WORKER = """
import os, socket, sys, threading, time
here, there = zip(*(socket.socketpair() for _ in range(16)))
listener = socket.create_server(("127.0.0.1", 0))
connections = [socket.create_connection(listener.getsockname()) for _ in range(32)]
for _ in range(64):
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
if os.fork() == 0:
    time.sleep(3600)
open(os.path.join(sys.argv[1], os.environ["RANK"]), "w").close()
time.sleep(3600)
"""


def read_page(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def cost_of_reading():
    with tempfile.TemporaryDirectory() as directory:
        port = ports.free_port()
        argv = [program("ddprun"), "--standalone", f"--nproc_per_node={NUM_WORKERS}", f"--metrics=127.0.0.1:{port}",
                "--hang-action=off", PYTHON, "-c", WORKER, directory]
        agent = subprocess.Popen(argv, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 60
            while len(os.listdir(directory)) < NUM_WORKERS:
                if time.monotonic() > deadline or agent.poll() is not None:
                    raise RuntimeError("the workers did not start")
                time.sleep(0.05)
            if f'ddprun_worker_tcp_connections{{local_rank="{NUM_WORKERS - 1}"}} 32' not in read_page(port):
                raise RuntimeError("a page without what is measured")
            before = cpu_seconds(agent.pid)
            for _ in range(NUM_READINGS):
                time.sleep(SECONDS_BETWEEN)
                read_page(port)
            used = cpu_seconds(agent.pid) - before
            return {"CPU %": 100 * used / (NUM_READINGS * SECONDS_BETWEEN)}
        finally:
            agent.terminate()
            agent.wait(60)


def rows():
    return [Row("metrics-cpu", f"a node's readings and its page of metrics, {NUM_WORKERS} workers", {OURS: cost_of_reading},
                [Goal("CPU %", 0.2)], repeats=3,
                note=f"`ddprun --metrics --hang-action=off`, its page read every {SECONDS_BETWEEN} s, for "
                     f"{NUM_READINGS * SECONDS_BETWEEN} s. Each worker has 65 threads, a child and 32 connections")]
