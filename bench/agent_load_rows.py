# SPDX-License-Identifier: Apache-2.0
"""The row about the rendezvous' cost of agents' state reports. It has no peer: torchrun's agents report no state."""
import http.client
import json
import os
import subprocess
import tempfile
import time

from measure import HERE, PYTHON, environment, program
from row import OURS, Goal, Row
from service_rows import cpu_seconds

NODES, WORKERS = 1000, 8
SECONDS, WARM_UP_SECONDS = 40, 12  # each agent sends each kind of message within 10 s


def job_of(endpoint):
    host, port = endpoint.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    connection.request("GET", "/v1/jobs")
    job, = json.load(connection.getresponse())["jobs"]
    connection.close()
    return job


def check_all_tell(endpoint):
    job = job_of(endpoint)
    tell = sum(node["connected"] and "monitor" in node and len(node["step_times"]) == WORKERS for node in job["nodes"])
    if (job["phase"], job["round"], tell, job["training"]["step_parts"]["ranks"]) != ("running", 1, NODES, NODES * WORKERS):
        raise RuntimeError(f"round {job['round']} is {job['phase']}; {tell} of {NODES} nodes tell all")


def agent_load():
    with tempfile.TemporaryDirectory() as directory:
        daemon = subprocess.Popen([program("ddprund"), "--listen=127.0.0.1:0", f"--state-dir={directory}/state"], env=environment(),
                                  text=True, stderr=subprocess.PIPE)
        agents = None
        try:
            endpoint = next(line for line in daemon.stderr if "listening on " in line).split()[-1]
            agents = subprocess.Popen([PYTHON, os.path.join(HERE, "fake_agents.py"), endpoint, str(NODES), str(WORKERS)], text=True,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            if agents.stdout.readline() != "running\n":
                raise RuntimeError("the agents did not come to run")
            time.sleep(WARM_UP_SECONDS)
            check_all_tell(endpoint)
            before = cpu_seconds(daemon.pid)
            time.sleep(SECONDS)
            used = cpu_seconds(daemon.pid) - before
            check_all_tell(endpoint)
            return {"CPU %": 100 * used / SECONDS}
        finally:
            for process in filter(None, (agents, daemon)):
                process.kill()
                process.wait()


def rows():
    return [Row("agent-load", f"`ddprund` with a job of {NODES:,} nodes × {WORKERS} ranks that runs", {OURS: agent_load},
                [Goal("CPU %", 5)], repeats=3,
                note=f"CPU of one core, over {SECONDS} s, with a journal: 600 pings and 200 reports a second. All "
                     "agents are in one process (bench/fake_agents.py), which is not counted")]
